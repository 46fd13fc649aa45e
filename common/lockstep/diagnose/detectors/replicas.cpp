// Pitfalls of the replicas: not the same model, not the same start, not the same steps.
#include <lockstep/diagnose/averaging.h>
#include <lockstep/diagnose/backwards.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/replica_groups.h>
#include <lockstep/diagnose/restored.h>
#include <lockstep/diagnose/tolerance.h>
#include <lockstep/trace/alone_before.h>

#include <algorithm>
#include <iterator>
#include <optional>

namespace lockstep::diagnose {
namespace {
bool is_told_not_to_reduce(const trace::ParticipantTrace& rank);
bool is_told_not_to_reduce(const Run& run);
Verdict unreduced_gradients(const Run& run, bool with_wrapper, const std::string& meaning);
Verdict parameters_differ_across_ranks(const Run& run);
Verdict no_initial_broadcast(const Run& run);
Verdict replicas_diverged(const Run& run);
}  // namespace

std::vector<Detector> replicas_detectors() {
  return {
      // Rule: shapes or dtypes differ. Names may differ.
      {.slug = "parameters-differ-across-ranks",
       .equation = Equation::equal_start,
       .whole = true,
       .needs = {"model"},
       .participants = Participants::ranks,
       .stage = Stage::ranks_differ,
       .accounts_for = {"no-initial-broadcast", "inputs-differ", "update-differs",
                        "replicas-diverged"},
       .detect = parameters_differ_across_ranks},
      // Needs every rank's parameters right before the first step. Rule: they differ beyond
      // rounding; or, with an engine, those that the ranks go on with from a checkpoint do
      // (`training_state`). Not fooled by equal seeds in place of a broadcast.
      {.slug = "no-initial-broadcast",
       .equation = Equation::equal_start,
       .whole = true,
       .needs = {"parameters"},
       .participants = Participants::ranks,
       .accounts_for = {"update-differs", "replicas-diverged"},
       .detect = no_initial_broadcast},
      // Needs parameters before and after updates, both gradients, no gradient engine. Rule:
      // replicas start equal, each rank goes by its own gradient, and they are apart ever after.
      // Not fooled by averaging the parameters after local steps: where equal ones were not
      // recorded, collectives as large as the parameters after an update make it not_triggered; so does
      // a run that has not ended, before its ranks share a model. With an engine, that was told not to
      // reduce an update's last backward: then the ranks' gradients differ, and what came before may be
      // reduced.
      {.slug = "no-gradient-sync",
       .equation = Equation::mean_gradient,
       .needs = {"parameters", "local_gradients", "reduced_gradients"},
       .participants = Participants::ranks,
       .accounts_for = {"update-differs", "replicas-diverged", "gradient-not-the-mean"},
       .detect =
           [](const Run& run) {
             return unreduced_gradients(
                 run, false,
                 are_alone(run)               ? ", since the engine's group holds this rank alone"
                 : is_told_not_to_reduce(run) ? ", since the engine was told not to reduce (NoSync)"
                                              : "");
           }},
      // The same where a distributed gradient engine took the parameters over: its forward was not
      // called.
      {.slug = "forward-bypasses-wrapper",
       .equation = Equation::mean_gradient,
       .needs = {"engine", "parameters", "local_gradients", "reduced_gradients"},
       .participants = Participants::ranks,
       .stage = Stage::ranks_differ,
       .accounts_for = {"update-differs", "replicas-diverged", "gradient-not-the-mean"},
       .detect =
           [](const Run& run) {
             return unreduced_gradients(
                 run, true, ", though a distributed gradient engine holds the parameters");
           }},
      // Needs parameters after updates. Rule: they differ across ranks at some step and are not
      // equal again later. Advice: all of them loaded weights after their last update, and end with other ones
      // (`training_state`). Where gradients are not reduced and the replicas may be averaged unseen, as in
      // no-gradient-sync, only a parameter that stays apart when others are made equal; and, as advice, replicas that
      // a run ends with.
      {.slug = "replicas-diverged",
       .equation = Equation::equal_after,
       .whole = true,
       .needs = {"parameters"},
       .participants = Participants::ranks,
       .detect = replicas_diverged},
  };
}

namespace {
struct ReplicaDifference {
  std::int64_t step = -1;
  int tensor = -1;         // the first that differs; -1 = all are equal
  std::vector<int> ranks;  // odd ones out
  double distance = 0;     // relative, the largest from the first rank's
  bool finite = true;      // or else only some of the ranks' values are
};

ReplicaDifference difference(const Run& run, std::int64_t step, const Replicas& replicas) {
  ReplicaDifference result;
  result.step = step;
  const auto groups = groups_of_equal(replicas);
  result.tensor = groups.tensor;
  const auto spread = spread_of(replicas);
  result.distance = spread.distance;
  result.finite = spread.finite == 0 || spread.finite == replicas.size();
  result.ranks = odd_ones_out(run.numbers, groups.of);
  return result;
}

// The steps from which a rank records another model than before: not one of which parameters were frozen or thawed.
std::vector<std::int64_t> beginnings_of_models(const Run& run) {
  const auto hold = [](const trace::Model& all, const trace::Model& some) {
    return std::all_of(some.names.begin(), some.names.end(), [&](const auto& name) {
      return std::find(all.names.begin(), all.names.end(), name) != all.names.end();
    });
  };
  std::vector<std::int64_t> steps;
  const trace::Model* last = nullptr;
  for (const auto& at : run.ranks.front()->all<trace::Model>()) {
    const auto& now = *at.event;
    if (last && (now.names == last->names || (!hold(now, *last) && !hold(*last, now))))
      steps.push_back(at.step);
    last = &now;
  }
  return steps;
}

// The first step after which a model's replicas are apart for good. Equal ones later on mean that they are
// brought together now and then, which is a way to train.
std::optional<ReplicaDifference> divergence(const Run& run, const ReplicasByStep& steps) {
  const auto before = by_step<trace::BeforeUpdate>(run);
  const auto models = beginnings_of_models(run);
  auto next = models.begin();
  std::optional<ReplicaDifference> first;
  auto met = before.begin();
  for (const auto& [step, replicas] : steps) {
    if (step < 0) continue;
    for (; met != before.end() && met->first <= step; ++met)
      if (first && met->first > first->step && are_brought_together(before, met->first))
        return std::nullopt;
    for (; next != models.end() && *next <= step; ++next)
      if (first) return first;
    const auto now = difference(run, step, replicas);
    if (now.tensor < 0 && first) return std::nullopt;
    if (now.tensor >= 0 && !first) first = now;
  }
  for (; first && met != before.end(); ++met)
    if (are_brought_together(before, met->first)) return std::nullopt;
  return first;
}

// The last gradients of each update were to be left as they are: the engine, which looks when a forward begins,
// had been told so by then. Where no forward was recorded, by the update.
bool is_told_not_to_reduce(const trace::ParticipantTrace& rank) {
  bool wanted = true, updated = false;
  std::optional<bool> at_forward;
  for (const auto& event : rank.events) {
    if (const auto* told = event.as<trace::SyncGradients>()) wanted = told->wanted;
    const auto* forward = event.as<trace::Forward>();
    if (forward && forward->training) at_forward = wanted;
    if (!event.is<trace::Update>()) continue;
    if (at_forward.value_or(wanted)) return false;
    updated = true;
    at_forward.reset();
  }
  return updated;
}

bool is_told_not_to_reduce(const Run& run) {
  return std::all_of(run.ranks.begin(), run.ranks.end(),
                     [](const auto* rank) { return is_told_not_to_reduce(*rank); });
}

// Elements of the parameters; where no rank recorded them, as many as there are tensors.
double parameter_elements(const Run& run, const Replicas& replicas) {
  const auto models = run.ranks.front()->all<trace::Model>();
  if (models.empty()) return static_cast<double>(replicas.front()->size());
  return static_cast<double>(elements_of(*models.front().event));
}

// The ranks' gradients are reduced from that step on: then that is what large collectives are for,
// and averaging now and then would have nothing to do.
bool reduces_gradients_from(const Run& run, std::int64_t step) {
  bool any = false;
  for (const auto& gradients : gradient_steps(run)) {
    if (gradients.step < step) continue;
    any = true;
    if (!is_unreduced(gradients)) return true;
  }
  return !any && has_ddp(run);
}

// A job that still runs may have trained no more than a probe that each rank throws away (trace/alone_before.h). One that
// ended with it had no other model.
bool may_be_before_the_job(const Run& run) {
  return std::ranges::none_of(run.ranks, [&](const auto* rank) {
    return rank->closed || run.end_of(rank->participant.rank) || trace::shares_a_model(*rank);
  });
}

const char* const kMaybeBeforeTheJob =
    "the run has not ended, and so far the ranks share no model: each may train one for itself "
    "before the job";

const char* const kMaybeAveraged =
    "collectives as large as the parameters ran after updates: the replicas may be averaged "
    "where they were not recorded";

std::string evidence_of(const Run& run, const ReplicaDifference& difference) {
  return fmt::format(
      "{} is the first that differs; {}",
      tensor_text("parameter", static_cast<std::size_t>(difference.tensor), parameter_names(run)),
      difference.finite
          ? fmt::format("the replicas are up to {} (relative) apart", number(difference.distance))
          : "some replicas hold values that are not finite");
}

std::string shape_of(const trace::Model& model, std::size_t tensor) {
  if (tensor >= model.shapes.size()) return "nothing";
  return fmt::format("{} {}", shape_text(model.shapes[tensor]),
                     tensor < model.dtypes.size() ? model.dtypes[tensor] : "");
}

// Some backward before an update's last one was reduced.
bool some_part_is_reduced(const Run& run) {
  const auto is_reduced = [](const std::vector<Backward>& parts, double elements) {
    return elements > 0 && parts.size() > 1 &&
           std::any_of(parts.begin(), parts.end() - 1,
                       [&](const auto& part) { return part.reduced >= elements; });
  };
  const auto& ranks = update_spans(run);
  return std::any_of(ranks.begin(), ranks.end(), [&](const auto& spans) {
    return std::any_of(spans.begin(), spans.end(), [&](const UpdateSpan& span) {
      return is_reduced(span.backwards, span.elements) || is_reduced(span.forwards, span.elements);
    });
  });
}

// Replicas that go by their own gradients from an equal start; `with_wrapper` says which of the two
// pitfalls that look so is asked about.
Verdict unreduced_gradients(const Run& run, bool with_wrapper, const std::string& meaning) {
  if ((has_ddp(run) && !is_told_not_to_reduce(run) && !are_alone(run)) != with_wrapper)
    return with_wrapper ? not_triggered("no distributed gradient engine took the parameters over")
                        : not_applicable("a distributed gradient engine reduces the gradients");
  if (with_wrapper && waited_for(run)) return clean();  // unused-parameter
  const auto& replicas = replicas_by_step(run);
  const auto start = replicas.find(-1);
  if (start == replicas.end() || replicas.size() < 2)
    return not_triggered("parameters were not recorded at the start and after an update");
  const auto& gradients = gradient_steps(run);
  if (gradients.empty()) return not_triggered(kNoGradients);
  if (difference(run, -1, start->second).tensor >= 0) return clean();
  const auto apart = divergence(run, replicas);
  if (!apart) return clean();
  if (may_be_before_the_job(run)) return not_triggered(kMaybeBeforeTheJob);
  const bool whole = std::all_of(gradients.begin(), gradients.end(), is_unreduced);
  // Of an update's backwards some are reduced, and not the last.
  const bool in_part =
      !whole && is_told_not_to_reduce(run) && some_part_is_reduced(run) &&
      std::none_of(gradients.begin(), gradients.end(), [](const GradientStep& step) {
        return all_near(step.reduced, step.reduced.front(), kRounding);
      });
  if (!whole && !in_part) return clean();
  if (whole && may_be_averaged_unseen(run, apart->step, parameter_elements(run, start->second)))
    return not_triggered(kMaybeAveraged);
  return found(
      {.ranks = run.numbers,
       .step = apart->step,
       .evidence = fmt::format(
           "each rank updates with its own gradient{}{}; equal at the start, {}",
           in_part ? " of an update's last backward" : "", meaning, evidence_of(run, *apart))});
}

Verdict parameters_differ_across_ranks(const Run& run) {
  std::vector<const trace::Model*> models;
  for (const auto* rank : run.ranks) {
    const auto of_rank = rank->all<trace::Model>();
    if (of_rank.empty()) return not_triggered("a rank did not record its parameters' shapes");
    models.push_back(of_rank.front().event);
  }
  std::vector<std::pair<std::vector<std::vector<std::int64_t>>, std::vector<std::string>>> layouts;
  for (const auto* model : models) layouts.emplace_back(model->shapes, model->dtypes);
  const auto odd = odd_ones_out(run.numbers, layouts);
  if (odd.empty()) return clean();
  if (send_their_parts(run))
    return not_applicable("each rank updates a part of the model and sends it to the others");
  std::size_t other = 1;
  while (layouts[other] == layouts[0]) ++other;
  std::size_t tensor = 0;
  while (shape_of(*models[0], tensor) == shape_of(*models[other], tensor)) ++tensor;
  return found({.ranks = odd,
                .evidence = fmt::format("{} is {} on rank {} and {} on rank {}",
                                        tensor_text("parameter", tensor, models[0]->names),
                                        shape_of(*models[0], tensor), run.numbers[0],
                                        shape_of(*models[other], tensor), run.numbers[other])});
}

// The models that the ranks held at such a moment, by the step and by how many came before in it. Only those that every
// rank tells of.
std::map<std::pair<std::int64_t, std::size_t>, std::vector<std::uint64_t>> models_at(
    const Run& run, const std::string& moment) {
  std::map<std::pair<std::int64_t, std::size_t>, std::vector<std::uint64_t>> models;
  for (const auto* rank : run.ranks) {
    std::map<std::int64_t, std::size_t> before;
    for (const auto& at : rank->latest<trace::TrainingState>())
      if (const auto model = part(*at.event, "model"); model && at.event->moment == moment)
        models[{at.step, before[at.step]++}].push_back(model->hash);
  }
  std::erase_if(models, [&](const auto& at) { return at.second.size() != run.ranks.size(); });
  return models;
}

// The first time, after an update, that the ranks do this with other weights on each.
std::optional<Finding> weights_differ_at(const Run& run, const std::string& moment,
                                         const std::string& what_they_do) {
  for (const auto& [at, of_ranks] : models_at(run, moment)) {
    const auto step = at.first;
    const auto odd = odd_ones_out(run.numbers, of_ranks);
    if (step > 0 && !odd.empty())
      return Finding{.ranks = odd,
                     .step = step,
                     .evidence = fmt::format("after update {} the ranks {} weights that differ",
                                             step, what_they_do)};
  }
  return std::nullopt;
}

Verdict no_initial_broadcast(const Run& run) {
  const auto& replicas = replicas_by_step(run);
  const auto start = replicas.find(-1);
  if (start == replicas.end())
    return not_triggered("a rank did not record its parameters before the first step");
  const auto apart = difference(run, -1, start->second);
  if (apart.tensor < 0) {
    const auto later = has_ddp(run)
                           ? weights_differ_at(run, "resumed", "go on from a checkpoint with")
                           : std::nullopt;
    return later ? found(*later) : clean();
  }
  return found(
      {.ranks = apart.ranks, .evidence = "before the first step, " + evidence_of(run, apart)});
}

// With what they loaded last, such as the best weights. Each may mean to evaluate other ones, so this is advice.
std::optional<Finding> ends_with_other_weights(const Run& run) {
  auto loaded = weights_differ_at(run, "loaded", "end with");
  if (loaded) loaded->severity = Severity::advice;
  return loaded;
}

// A program may mean to end with one rank's weights, so this is advice.
Finding never_together_again(const Run& run, const ReplicasByStep& replicas) {
  const auto& [step, last] = *replicas.rbegin();
  return {.severity = Severity::advice,
          .ranks = run.numbers,
          .step = step,
          .evidence = fmt::format("the run ends with replicas that differ: {}, and nothing after "
                                  "the last update has averaged them",
                                  evidence_of(run, difference(run, step, last)))};
}

Verdict replicas_diverged(const Run& run) {
  const auto& replicas = replicas_by_step(run);
  if (replicas.empty() || replicas.rbegin()->first < 0)
    return not_triggered("no step has every rank's parameters after an update");
  const auto apart = divergence(run, replicas);
  if (!apart) {
    const auto loaded = ends_with_other_weights(run);
    return loaded ? found(*loaded) : clean();
  }
  if (may_be_before_the_job(run)) return not_triggered(kMaybeBeforeTheJob);
  if (!reduces_gradients_from(run, apart->step) &&
      may_be_averaged_unseen(run, apart->step, parameter_elements(run, replicas.begin()->second))) {
    const auto alone = left_out_of_averages(run);
    if (!alone)
      return ends_apart(run, parameter_elements(run, replicas.begin()->second))
                 ? found(never_together_again(run, replicas))
                 : not_triggered(kMaybeAveraged);
    return found({.ranks = run.numbers,
                  .step = alone->step,
                  .evidence = tensor_text("parameter", alone->tensor, parameter_names(run)) +
                              " stays apart whenever something makes other parameters equal"});
  }
  const auto at = replicas.find(apart->step);
  return found({.ranks = apart->ranks,
                .step = apart->step,
                .evidence = evidence_of(run, *apart),
                .after = at == replicas.begin() ? -1 : std::prev(at)->first});
}

}  // namespace
}  // namespace lockstep::diagnose
