// Pitfalls of layers that look at the batch as a whole, and of the buffers they keep.
#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/layers.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>
#include <optional>

namespace lockstep::diagnose {
namespace {
Verdict local_batch_norm(const Run& run);
Verdict buffers_not_synced(const Run& run);
Verdict train_mode_differs_across_ranks(const Run& run);
}  // namespace

std::vector<Detector> batch_norm_detectors() {
  return {
      // Advice. Needs buffers and parameters at the start and after updates. Rule: the replicas are
      // equal after an update, and a layer's statistics that were equal at the start are not
      // (`layer_modes`). Not fooled by BatchNorm that is frozen, nor by statistics that are gathered
      // over the ranks, nor by other buffers that each rank moves by itself. Of a Python model that no engine has wrapped the
      // running statistics stand in `outside_parameters`: then by the last update after which the
      // replicas are equal. Not fooled by replicas that are averaged with their statistics.
      {.slug = "local-batch-norm",
       .equation = Equation::buffers,
       .needs = {"parameters"},
       .participants = Participants::ranks,
       .common = true,
       .detect = local_batch_norm},
      // Needs buffers at the start, and those that every rank's evaluation went by; of a Python model that no engine has
      // wrapped, its running statistics. Rule: they differ though they were equal at the start, or on equal replicas; of a
      // module that is called without its wrapper this is advice. Not fooled by buffers that differ while training and are
      // made equal in time, nor by an evaluation on one rank.
      {.slug = "buffers-not-synced",
       .equation = Equation::buffers,
       .whole = true,
       .needs = {"forward"},
       .participants = Participants::ranks,
       .accounts_for = {"evaluation-not-reduced"},
       .detect = buffers_not_synced},
      // Rule: the last forward before an update ran in training mode on some ranks and in
      // evaluation mode on others. Not fooled by one rank that evaluates between updates, nor by
      // evaluation mode on all ranks.
      {.slug = "train-mode-differs-across-ranks",
       .equation = Equation::modes,
       .whole = true,
       .needs = {"forward", "update"},
       .participants = Participants::ranks,
       .stage = Stage::ranks_differ,
       .detect = train_mode_differs_across_ranks},
  };
}

namespace {
// What `pick` gives of each rank, at those steps where every rank has it.
template <class Pick>
ReplicasByStep of_all_ranks(const Run& run, Pick pick) {
  ReplicasByStep steps;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& [step, values] : pick(*run.ranks[r])) {
      auto& replicas = steps[step];
      if (replicas.size() == r) replicas.push_back(values);
    }
  std::erase_if(steps, [&](const auto& at) { return at.second.size() != run.ranks.size(); });
  return steps;
}

using OfRank = std::map<std::int64_t, const std::vector<trace::Summary>*>;

// Buffers are recorded right after the parameters of an update (or of the start), right before what the first forward
// of an evaluation is given (or that forward), and right before a broadcast that overwrites some.
template <class Neighbour>
OfRank buffers_beside(const trace::ParticipantTrace& rank, int distance, Neighbour wanted) {
  OfRank steps;
  for (const auto& at : rank.all<trace::Buffers>()) {
    const auto other = at.place + static_cast<std::size_t>(distance);  // -1: the one before
    if (other < rank.events.size() && rank.events[other].step == at.step &&
        wanted(rank.events[other]))
      steps.emplace(at.step, &at.event->values);
  }
  return steps;
}

OfRank buffers_after_updates(const trace::ParticipantTrace& rank) {
  return buffers_beside(rank, -1,
                        [](const trace::Event& before) { return before.is<trace::Parameters>(); });
}

OfRank evaluated_buffers(const trace::ParticipantTrace& rank) {
  return buffers_beside(rank, 1, [](const trace::Event& after) {
    const auto* forward = after.as<trace::Forward>();
    return forward && !forward->training;
  });
}

// Of a module that is called without its wrapper.
OfRank buffers_of_module(const trace::ParticipantTrace& rank) {
  return buffers_beside(
      rank, 1, [](const trace::Event& after) { return after.is<trace::EvaluationInput>(); });
}

OfRank overwritten_buffers(const trace::ParticipantTrace& rank) {
  return buffers_beside(rank, 1, [](const trace::Event& after) {
    const auto* call = after.as<trace::Collective>();
    return call && call->op == "broadcast";
  });
}

bool are_apart(const Replicas& replicas, std::size_t buffer) {
  const auto& first = *replicas.front();
  return std::ranges::any_of(replicas, [&](const auto* rank) {
    return rank->size() <= buffer || first.size() <= buffer ||
           !are_alike((*rank)[buffer], first[buffer]);
  });
}

// The buffers that are looked at: those that all ranks have alike at the start.
std::vector<std::size_t> alike_at_start(const Replicas& start) {
  std::vector<std::size_t> alike;
  for (std::size_t b = 0; b < start.front()->size(); ++b)
    if (!are_apart(start, b)) alike.push_back(b);
  return alike;
}

// The first of these that ranks no longer have alike; -1 = none.
int first_apart(const Replicas& replicas, const std::vector<std::size_t>& buffers) {
  const auto found =
      std::ranges::find_if(buffers, [&](std::size_t b) { return are_apart(replicas, b); });
  return found == buffers.end() ? -1 : static_cast<int>(*found);
}

const char* const kNoBuffers = "no rank's buffers were recorded at the start and after an update";

// By its name at the step: another model's buffers have other names.
std::string buffer_text(const auto& told, std::int64_t step, std::size_t buffer) {
  std::vector<std::string> names;
  for (const auto& at : told)
    if (at.step <= step) names = at.event->names;
  return tensor_text("buffer", buffer, names);
}

std::string buffer_text(const Run& run, std::int64_t step, int buffer) {
  return buffer_text(run.ranks.front()->all<trace::Buffers>(), step,
                     static_cast<std::size_t>(buffer));
}

// Running statistics of a model that no engine has wrapped: after updates, and before evaluations.
auto told_statistics(const trace::ParticipantTrace& rank) {
  return rank.latest<trace::OutsideParameters>().where(
      [](const auto& at) { return at.event->holder == kModelStatistics; });
}

OfRank statistics_of(const trace::ParticipantTrace& rank) {
  OfRank steps;
  for (const auto& at : told_statistics(rank)) steps[at.step] = &at.event->values;
  return steps;
}

Finding moved_by_own_batches(const Run& run, std::int64_t step, const std::string& buffer,
                             const Replicas& replicas) {
  return {.severity = Severity::advice,
          .ranks = run.numbers,
          .step = step,
          .evidence = fmt::format("equal replicas have moved {} each by its own batch: they are up "
                                  "to {} (relative) apart",
                                  buffer, number(spread_of(replicas).distance))};
}

// Replicas may be averaged now and then, with their statistics: by the last ones that are equal.
Verdict local_statistics(const Run& run) {
  const auto statistics = of_all_ranks(run, statistics_of);
  // Where an engine came later, they are of another model, such as a teacher.
  if (statistics.empty() || !run.ranks.front()->all<trace::Engine>().empty())
    return not_triggered(kNoBuffers);
  const auto parameters = of_all_ranks(run, [](const trace::ParticipantTrace& rank) {
    OfRank steps;
    for (const auto& at : rank.latest<trace::Parameters>()) steps[at.step] = &at.event->values;
    return steps;
  });
  for (auto at = statistics.rbegin(); at != statistics.rend(); ++at) {
    const auto weights = parameters.find(at->first);
    if (weights == parameters.end() || groups_of_equal(weights->second).tensor >= 0) continue;
    const auto& first = *at->second.front();
    for (std::size_t b = 0; b < first.size(); ++b)
      for (const auto* rank : at->second)
        if (b < rank->size() && !are_alike((*rank)[b], first[b]))
          return found(moved_by_own_batches(
              run, at->first, buffer_text(told_statistics(*run.ranks.front()), at->first, b),
              at->second));
    return clean();
  }
  return clean();
}

// Those of layers that keep running statistics, or the others.
std::vector<std::size_t> alike_at_start(const Run& run, const Replicas& start, bool statistics) {
  const auto layers = layers_of(*run.ranks.front());
  auto buffers = alike_at_start(start);
  std::erase_if(buffers, [&](std::size_t buffer) {
    const auto is_its = [&](const Layer& layer) { return layer.has(buffer); };
    return std::ranges::any_of(layers, is_its) != statistics;
  });
  return buffers;
}

// The replicas were recorded after this update, and are equal.
bool are_equal_after(const Run& run, std::int64_t step) {
  const auto& replicas = replicas_by_step(run);
  const auto found = replicas.find(step);
  return found != replicas.end() && groups_of_equal(found->second).tensor < 0;
}

// The first step after which equal replicas have a buffer apart that they had alike at the start.
struct OwnBuffer {
  std::int64_t step = -1;
  std::string text;
  Replicas replicas;
};
std::optional<OwnBuffer> own_buffer(const Run& run, bool statistics) {
  const auto buffers = of_all_ranks(run, buffers_after_updates);
  const auto start = buffers.find(-1);
  if (start == buffers.end()) return std::nullopt;
  const auto looked_at = alike_at_start(run, start->second, statistics);
  if (looked_at.empty()) return std::nullopt;
  for (const auto& [step, replicas] : buffers) {
    const int apart = first_apart(replicas, looked_at);
    if (step < 0 || apart < 0 || !are_equal_after(run, step)) continue;
    return OwnBuffer{step, buffer_text(run, step, apart), replicas};
  }
  return std::nullopt;
}

Verdict local_batch_norm(const Run& run) {
  const auto buffers = of_all_ranks(run, buffers_after_updates);
  if (buffers.empty()) return local_statistics(run);
  if (buffers.count(-1) == 0 || buffers.size() < 2) return not_triggered(kNoBuffers);
  const auto own = own_buffer(run, true);
  return own ? found(moved_by_own_batches(run, own->step, own->text, own->replicas)) : clean();
}

// An engine sends buffers by their places.
std::optional<Finding> other_order(const Run& run) {
  std::vector<std::vector<std::string>> names;
  for (const auto* rank : run.ranks) {
    const auto told = rank->all<trace::Buffers>();
    names.push_back(told.empty() ? std::vector<std::string>{} : told.front().event->names);
  }
  const auto odd = odd_ones_out(run.numbers, names);
  if (odd.empty() || !has_ddp(run)) return std::nullopt;
  const auto other =
      std::ranges::find_if(names, [&](const auto& each) { return each != names[0]; });
  if (!std::ranges::is_permutation(*other, names[0])) return std::nullopt;
  const auto at =
      static_cast<std::size_t>(std::ranges::mismatch(names[0], *other).in1 - names[0].begin());
  return Finding{
      .ranks = odd,
      .evidence = fmt::format("buffer {} is \"{}\" on rank {} and \"{}\" on rank {}: a broadcast, "
                              "which goes by their places, gives each the other's",
                              at, names[0][at], run.numbers[0], (*other)[at],
                              run.numbers[static_cast<std::size_t>(other - names.begin())])};
}

// The running statistics that each rank's evaluation goes by, of a model that no engine has wrapped: as they were last
// looked at, since the update before.
OfRank evaluated_statistics(const trace::ParticipantTrace& rank) {
  OfRank steps;
  const auto told = told_statistics(rank);
  auto behind = told.begin();
  for (const auto& at : rank.latest<trace::Forward>()) {
    while (behind != told.end() && behind->place < at.place) ++behind;
    if (!at.event->training && behind != told.begin() && std::prev(behind)->step >= at.step - 1)
      steps.emplace(at.step, &std::prev(behind)->event->values);
  }
  return steps;
}

Verdict buffers_not_synced(const Run& run) {
  if (auto order = other_order(run)) return found(std::move(*order));
  for (const auto& [step, replicas] : of_all_ranks(run, evaluated_statistics)) {
    const auto distance = spread_of(replicas).distance;
    if (distance <= kReplicaTolerance || !are_equal_after(run, step - 1)) continue;
    return found({.ranks = run.numbers,
                  .step = step,
                  .evidence = fmt::format("the ranks evaluate with different running statistics: "
                                          "they are up to {} (relative) apart",
                                          number(distance))});
  }
  const auto start = of_all_ranks(run, buffers_after_updates).extract(-1);
  const auto evaluated = of_all_ranks(run, evaluated_buffers);
  const auto of_module = of_all_ranks(run, buffers_of_module);
  if (start.empty() || (evaluated.empty() && of_module.empty()))
    return not_triggered(
        "buffers were not recorded on every rank at the start and right before an evaluation");
  const auto looked_at = alike_at_start(start.mapped());
  // Without the wrapper ranks may evaluate for themselves, or make the buffers equal in between.
  for (const auto* all : {&evaluated, &of_module})
    for (const auto& [step, replicas] : *all) {
      const int apart = first_apart(replicas, looked_at);
      if (apart < 0) continue;
      return found({.severity = all == &evaluated ? Severity::violation : Severity::advice,
                    .ranks = run.numbers,
                    .step = step,
                    .evidence = fmt::format("the ranks evaluate with different buffers: {} is the "
                                            "first, and they are up to {} (relative) apart",
                                            buffer_text(run, step, apart),
                                            number(spread_of(replicas).distance))});
    }
  return clean();
}

// The last forward's mode before each update.
std::map<std::int64_t, bool> modes_of(const trace::ParticipantTrace& rank) {
  std::map<std::int64_t, bool> modes;
  for (const auto& update : cut_at_updates(rank))
    if (const auto* forward = update.last<trace::Forward>(); forward && update.updated)
      modes[update.step] = forward->training;
  return modes;
}

std::string ranks_in(const std::vector<int>& numbers, const std::vector<int>& modes, int mode) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < modes.size(); ++r)
    if (modes[r] == mode) ranks.push_back(numbers[r]);
  return lockstep::ranks_text(ranks);
}

Verdict train_mode_differs_across_ranks(const Run& run) {
  std::map<std::int64_t, std::vector<int>> steps;
  for (const auto* rank : run.ranks)
    for (const auto& [step, training] : modes_of(*rank)) steps[step].push_back(training ? 1 : 0);
  bool looked = false;
  for (const auto& [step, modes] : steps) {
    if (modes.size() != run.ranks.size()) continue;
    looked = true;
    const auto odd = odd_ones_out(run.numbers, modes);
    if (odd.empty()) continue;
    return found(
        {.ranks = odd,
         .step = step,
         .evidence = fmt::format(
             "this update's forward ran in evaluation mode on {} and in training mode on {}",
             ranks_in(run.numbers, modes, 0), ranks_in(run.numbers, modes, 1))});
  }
  return looked ? clean() : not_triggered("no update has every rank's forward");
}

// Of equal replicas after an update: buffers that were apart at the start, and still are.
std::optional<Reading> apart_from_the_start(const Run& run) {
  const auto buffers = of_all_ranks(run, buffers_after_updates);
  const auto start = buffers.find(-1);
  if (start == buffers.end() || start == std::prev(buffers.end())) return std::nullopt;
  const auto& [step, replicas] = *std::prev(buffers.end());
  if (!are_equal_after(run, step)) return std::nullopt;
  for (std::size_t b = 0; b < start->second.front()->size(); ++b)
    if (are_apart(start->second, b) && are_apart(replicas, b))
      return Reading{buffer_text(run, step, static_cast<int>(b)) +
                         " of equal replicas differs by rank, from the start to the end",
                     "each rank is meant to keep its own", 0};
  return std::nullopt;
}

}  // namespace

std::optional<Reading> moved_alone(const Run& run) {
  const auto own = own_buffer(run, false);
  if (!own) return apart_from_the_start(run);
  const auto text = fmt::format("equal replicas move {} each by its own batch", own->text);
  const auto start = of_all_ranks(run, buffers_after_updates).extract(-1);
  const auto looked_at = alike_at_start(run, start.mapped(), false);
  for (const auto& [step, replicas] : of_all_ranks(run, overwritten_buffers))
    if (first_apart(replicas, looked_at) >= 0)
      return Reading{
          fmt::format("{}, and in step {} a broadcast overwrites with one rank's what the others "
                      "have moved",
                      text, step),
          "one rank's is meant to do for all, and a loss where it is to be of all ranks' data",
          own->step};
  return Reading{text, "each rank is meant to keep its own", own->step};
}

bool buffers_stay_equal(const Run& run) {
  const auto buffers = of_all_ranks(run, buffers_after_updates);
  const auto start = buffers.find(-1);
  if (start == buffers.end() || buffers.size() < 2) return false;
  const auto looked_at = alike_at_start(start->second);
  return std::ranges::all_of(buffers,
                             [&](const auto& at) { return first_apart(at.second, looked_at) < 0; });
}

}  // namespace lockstep::diagnose
