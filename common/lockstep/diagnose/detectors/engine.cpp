// Pitfalls of whose gradients: the engine's count of parameters, the optimizer's list, the model's.
#include <lockstep/diagnose/backwards.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>

#include <algorithm>
#include <set>

namespace lockstep::diagnose {
namespace {
Verdict unused_parameter(const Run& run);
Verdict frozen_after_wrapping(const Run& run);
Verdict optimizer_built_on_other_parameters(const Run& run);
Verdict parameter_ready_twice(const Run& run);
Verdict zero_grad_on_bucket_view(const Run& run);
}  // namespace

std::vector<Detector> engine_detectors() {
  return {
      // Rule: a rank's backward ended without a gradient of some parameter, fewer elements than the
      // engine holds were all-reduced, and the rank made no further update; or in no recorded step a gradient comes for
      // it, though each goes through the engine's forward, and none of the others is reduced. Not fooled by engines
      // that look for unused parameters: they reduce all; nor by one that is bypassed: it reduces
      // nothing in any step, and is not waited for. Arrivals are recorded in few steps: where a
      // rank stopped in another one, not_triggered. That needs samples, or a training forward; of a
      // trace that has neither and ended in order, nothing tells.
      {.slug = "unused-parameter",
       .equation = Equation::mean_gradient,
       .line = "wrapping",
       .needs = {"model", "engine", "gradient_arrived", "collective", "update"},
       .fewest = 1,
       .complete = false,
       .stage = Stage::ranks_differ,
       .accounts_for = {"no-gradient-sync", "forward-bypasses-wrapper", "update-differs",
                        "replicas-diverged", "gradient-not-the-mean"},
       .detect = unused_parameter},
      // Needs an engine, and the model recorded again where requires_grad has changed. Rule: the
      // engine took over another number of parameters than are trained, and a backward's
      // all-reduces do not cover both. Not fooled by engines that look for unused parameters, nor
      // by a model that is wrapped again.
      {.slug = "frozen-after-wrapping",
       .equation = Equation::mean_gradient,
       .line = "wrapping",
       .needs = {"model", "engine", "collective", "update"},
       .fewest = 1,
       .complete = false,
       .stage = Stage::ranks_differ,
       .accounts_for = {"no-gradient-sync", "forward-bypasses-wrapper", "update-differs",
                        "replicas-diverged", "gradient-not-the-mean"},
       .detect = frozen_after_wrapping},
      // Needs parameters before and after updates, gradients, learning rates. Rule: gradient and
      // rate are not zero, and no parameter of the rank moves in any update. Not fooled by a
      // warm-up that begins at a rate of zero.
      {.slug = "optimizer-built-on-other-parameters",
       .equation = Equation::all_moved,
       .needs = {"parameters", "reduced_gradients", "update"},
       .participants = Participants::ranks,
       .fewest = 1,
       .complete = false,
       .accounts_for = {"update-differs", "gradients-not-zeroed"},
       .detect = optimizer_built_on_other_parameters},
      // Rule: in the update that a rank did not live to make, a parameter's gradient came again
      // before a backward had brought or reduced all of them, and no sync_gradients had told the
      // engine to wait. Not fooled by accumulation, nor by a layer that is used twice in one
      // forward. not_triggered as unused-parameter.
      {.slug = "parameter-ready-twice",
       .equation = Equation::mean_gradient,
       .line = "wrapping",
       .needs = {"model", "engine", "gradient_arrived", "collective"},
       .fewest = 1,
       .complete = false,
       .stage = Stage::ranks_differ,
       .detect = parameter_ready_twice},
      // Rule: the optimizer was to clear gradients that are views, which LibTorch refuses, and the
      // rank made no update after it. Not fooled by modules that let go of them, nor by zeroing in
      // place.
      {.slug = "zero-grad-on-bucket-view",
       .equation = Equation::mean_gradient,
       .line = "",
       .needs = {"zero_grad"},
       .fewest = 1,
       .complete = false,
       .stage = Stage::failure,
       .detect = zero_grad_on_bucket_view},
  };
}

namespace {
const char* const kNoEngine = "no distributed gradient engine took parameters over";
const char* const kStoppedUnseen =
    "a rank stopped in a step in which its gradients' arrival was not recorded";

// A span of a rank at fault; ranks are gathered by the caller.
struct Fault {
  std::vector<int> ranks;
  std::optional<UpdateSpan> first;  // of the first such rank
};

// Asks every rank's spans; `wrong(spans, i)` says whether the i-th shows the fault.
template <class Wrong>
Fault ranks_with(const Run& run, Wrong wrong) {
  Fault fault;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto& spans = update_spans(run)[r];
    for (std::size_t i = 0; i < spans.size(); ++i) {
      if (!wrong(spans, i)) continue;
      fault.ranks.push_back(run.numbers[r]);
      if (!fault.first) fault.first = spans[i];
      break;
    }
  }
  return fault;
}

// No later one has an update.
bool is_last(const std::vector<UpdateSpan>& spans, std::size_t i) {
  return std::none_of(spans.begin() + static_cast<std::ptrdiff_t>(i) + 1, spans.end(),
                      [](const auto& span) { return span.updated; });
}

// Backward ended, and the engine had not reduced all that it holds.
bool is_unfinished(const UpdateSpan& span) {
  return span.backward_ended && span.reduced < span.engine_elements;
}

bool any_stopped_unseen(const Run& run) {
  return std::any_of(run.ranks.begin(), run.ranks.end(),
                     [](const auto* rank) { return stopped_unseen(*rank); });
}

std::string reduced_of(const UpdateSpan& span) {
  return fmt::format("{} of {} elements of the gradients were all-reduced", whole(span.reduced),
                     whole(span.engine_elements));
}

// Counts as the engine does: from the first gradient on, until a backward has brought all of them or
// has reduced them. A parameter that comes again before that was ready twice.
struct ReadyTwice {
  std::int64_t parameter = 0;
  std::size_t counted = 0;  // parameters that had come by then
};
std::optional<ReadyTwice> ready_twice(const UpdateSpan& span) {
  // Where none was recorded, backwards are told apart by their forwards only: a second one may begin anywhere.
  const bool told = !span.begun.empty();
  std::set<std::int64_t> counted;
  const auto all = [&] {
    return static_cast<std::int64_t>(counted.size()) >= span.engine_parameters;
  };
  for (const auto& backward : told ? span.begun : span.forwards) {
    for (const auto parameter : backward.arrived) {
      if (!told && all()) counted.clear();
      if (!counted.insert(parameter).second) return ReadyTwice{parameter, counted.size()};
    }
    if (all() || backward.reduced >= span.engine_elements) counted.clear();
  }
  return std::nullopt;
}

// A rank's updates whose gradient and rate are large enough for float32 to see the step.
struct Moves {
  bool moved = false;               // a parameter, in one of them
  std::vector<std::int64_t> still;  // those in which none did
};
Moves moves_of(const trace::ParticipantTrace& rank) {
  Moves moves;
  const auto held = by_step<trace::Parameters>(rank);
  const auto gradients = by_step<trace::ReducedGradients>(rank);
  const auto engines = rank.all<trace::Engine>();
  const auto since = engines.empty() ? 0 : engines.back().step;
  for (const auto& at : rank.all<trace::Update>()) {
    if (at.step < since || (since > 0 && at.step == since))
      continue;  // of the model before, or after it
    const auto before = held.find(at.step - 1), after = held.find(at.step);
    const auto gradient = gradients.find(at.step);
    const auto& lr = at.event->lr;
    if (before == held.end() || after == held.end() || gradient == gradients.end() || lr.empty())
      continue;
    const double rate = *std::min_element(lr.begin(), lr.end());
    const auto& start = before->second->values;
    if (!(rate * norm_of(gradient->second->values) > 1e-6 * norm_of(start))) continue;
    if (are_identical(start, after->second->values))
      moves.still.push_back(at.step);
    else
      moves.moved = true;
  }
  return moves;
}

Verdict unused_parameter(const Run& run) {
  if (!has_ddp(run)) return not_triggered(kNoEngine);
  if (const auto parameter = waited_for(run))
    return found({.ranks = run.numbers,
                  .step = gradient_steps(run).front().step,
                  .evidence = tensor_text("parameter", *parameter, parameter_names(run)) +
                              " gets no gradient in any recorded step: the engine waits for it, "
                              "and reduces none of the others; each rank goes by its own"});
  bool looked = false;
  const auto fault = ranks_with(run, [&](const std::vector<UpdateSpan>& spans, std::size_t i) {
    const auto& span = spans[i];
    if (span.arrived.empty() || !span.backward_ended) return false;
    looked = true;
    // An engine that was held up before, and went on, had not been asked to reduce.
    const auto here = spans.begin() + static_cast<std::ptrdiff_t>(i);
    return is_unfinished(span) && is_last(spans, i) &&
           std::none_of(spans.begin(), here, is_unfinished) && !not_arrived(span).empty();
  });
  if (!looked) return not_triggered("no backward that ended has its gradients' arrival recorded");
  if (!fault.first) return any_stopped_unseen(run) ? not_triggered(kStoppedUnseen) : clean();
  const auto missing = not_arrived(*fault.first);
  return found(
      {.ranks = fault.ranks,
       .step = fault.first->step,
       .evidence = fmt::format("backward brought no gradient for {} of {}, the first of them {}; "
                               "{}, and the rank made no further update",
                               missing.size(), plural(fault.first->parameters, "parameter"),
                               missing.front(), reduced_of(*fault.first))});
}

Verdict frozen_after_wrapping(const Run& run) {
  if (!has_ddp(run)) return not_triggered(kNoEngine);
  bool looked = false;
  const auto fault = ranks_with(run, [&](const std::vector<UpdateSpan>& spans, std::size_t i) {
    const auto& span = spans[i];
    if (span.engine_parameters == 0 || !span.backward_ended) return false;
    looked = true;
    return span.parameters != span.engine_parameters &&
           span.reduced < std::max(span.elements, span.engine_elements);
  });
  if (!looked) return not_triggered("no backward ended after the engine took the parameters over");
  if (!fault.first) return clean();
  return found(
      {.ranks = fault.ranks,
       .step = fault.first->step,
       .evidence = fmt::format("the gradient engine took over {}, and then {} were trained; {}",
                               plural(fault.first->engine_parameters, "parameter"),
                               fault.first->parameters, reduced_of(*fault.first))});
}

Verdict optimizer_built_on_other_parameters(const Run& run) {
  bool looked = false;
  std::vector<int> ranks;
  Moves first;
  for (const auto* rank : run.ranks) {
    const auto moves = moves_of(*rank);
    looked = looked || moves.moved || !moves.still.empty();
    if (moves.moved || moves.still.empty()) continue;
    ranks.push_back(rank->participant.rank);
    if (first.still.empty()) first = moves;
  }
  if (!looked)
    return not_triggered(
        "no update has a learning rate, a gradient, and parameters before and after");
  if (ranks.empty()) return clean();
  return found(
      {.ranks = ranks,
       .step = first.still.front(),
       .evidence = fmt::format(
           "in {} no parameter moved, though the gradient and the learning rate were not zero",
           plural(static_cast<std::int64_t>(first.still.size()), "update"))});
}

Verdict parameter_ready_twice(const Run& run) {
  if (!has_ddp(run)) return not_triggered(kNoEngine);
  bool looked = false;
  const auto fault = ranks_with(run, [&](const std::vector<UpdateSpan>& spans, std::size_t i) {
    const auto& span = spans[i];
    if ((span.begun.empty() && span.forwards.empty()) || span.arrived.empty()) return false;
    looked = true;
    return !span.updated && ready_twice(span).has_value();
  });
  if (!looked)
    return not_triggered("no backward or forward with its gradients' arrival was recorded");
  if (!fault.first) return any_stopped_unseen(run) ? not_triggered(kStoppedUnseen) : clean();
  const auto twice = *ready_twice(*fault.first);
  return found(
      {.ranks = fault.ranks,
       .step = fault.first->step,
       .evidence = fmt::format("the gradient of parameter {} came a second time before the first "
                               "count was done ({} of {} had come), and no update followed",
                               twice.parameter, twice.counted,
                               plural(fault.first->engine_parameters, "parameter"))});
}

Verdict zero_grad_on_bucket_view(const Run& run) {
  bool looked = false;
  std::vector<int> ranks;
  std::int64_t step = 0, views = 0;
  for (const auto* rank : run.ranks) {
    const auto calls = rank->all<trace::ZeroGrad>();
    looked = looked || !calls.empty();
    const auto updates = rank->all<trace::Update>();
    for (const auto& at : calls) {
      const bool went_on = !updates.empty() && updates.back().step >= at.step;
      if (at.event->by != "optimizer" || at.event->views == 0 || went_on) continue;
      ranks.push_back(rank->participant.rank);
      step = at.step;
      views = at.event->views;
      break;
    }
  }
  if (!looked) return not_triggered("the clearing of gradients was not recorded");
  if (ranks.empty()) return clean();
  return found(
      {.ranks = ranks,
       .step = step,
       .evidence = fmt::format("the optimizer was to clear gradients of which {} are views of "
                               "another tensor, and the rank made no update after it",
                               views)});
}

}  // namespace
}  // namespace lockstep::diagnose
