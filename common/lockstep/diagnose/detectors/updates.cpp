// What the ranks do with equal gradients.
#include <lockstep/diagnose/averaging.h>
#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/moves.h>
#include <lockstep/diagnose/pairing.h>

#include <algorithm>
#include <optional>

namespace lockstep::diagnose {
namespace {
Verdict update_differs(const Run& run);
}  // namespace

std::vector<Detector> updates_detectors() {
  return {
      // Needs `update` of every rank, and an engine `distributed_data_parallel` on all, or parameters that stay equal,
      // or are averaged after updates: without the engine it is advice. Rule: the first of: ranks update with different
      // learning rates; a rank left out an update that others made; equal parameters and equal reduced gradients give
      // different parameters; in a pass ranks made different numbers of updates with equally many batches; parameters that
      // all get the same gradients move otherwise.
      {.slug = "update-differs",
       .equation = Equation::all_moved,
       .whole = true,
       .needs = {"update"},
       .participants = Participants::ranks,
       .accounts_for = {"replicas-diverged", "parameters-not-updated"},
       .detect = update_differs},
  };
}

namespace {
// The ranks were equal at the start and after two updates, or more, of which each moved them.
bool stay_equal(const ReplicasByStep& steps) {
  const std::vector<trace::Summary>* before = nullptr;
  int moves = 0;
  for (const auto& [step, replicas] : steps) {
    if (groups_of_equal(replicas).tensor >= 0) return false;
    moves += before != nullptr && first_difference(*before, *replicas.front()) >= 0 ? 1 : 0;
    before = replicas.front();
  }
  return moves >= 2;
}

std::string rates_text(const std::vector<double>& rates) {
  std::vector<std::string> words;
  for (const double rate : rates) words.push_back(number(rate));
  return list(words);
}

// The first step at which ranks updated with different learning rates.
std::optional<Finding> rates(
    const Run& run, const std::map<std::int64_t, std::vector<const trace::Update*>>& steps) {
  for (const auto& [step, updates] : steps) {
    const auto& first = updates.front()->lr;
    if (std::all_of(updates.begin(), updates.end(),
                    [&](const auto* update) { return update->lr == first; }))
      continue;
    std::vector<std::vector<double>> of_ranks;
    for (const auto* update : updates) of_ranks.push_back(update->lr);
    const auto odd = odd_ones_out(run.numbers, of_ranks);
    if (odd.empty()) continue;
    std::size_t other = 1;
    while (of_ranks[other] == of_ranks[0]) ++other;
    return Finding{.ranks = odd,
                   .step = step,
                   .evidence = fmt::format(
                       "rank {} updates with the learning rate {}, rank {} with {}", run.numbers[0],
                       rates_text(of_ranks[0]), run.numbers[other], rates_text(of_ranks[other]))};
  }
  return std::nullopt;
}

using ChangesOfRanks = std::vector<std::map<std::int64_t, const trace::BeforeUpdate*>>;

// The parameters that each rank updates in `step`: as the update before left them, unless something has changed them
// since. Empty where nothing says to what.
Replicas before_update(const ChangesOfRanks& changes, Replicas left, std::int64_t step) {
  for (std::size_t r = 0; r < changes.size(); ++r) {
    const auto found = changes[r].find(step);
    if (found == changes[r].end() || !found->second->changed) continue;
    if (found->second->values.empty()) return {};
    left[r] = &found->second->values;
  }
  return left;
}

// The first step that takes equal parameters and equal gradients to different parameters.
std::optional<Finding> results(const Run& run) {
  const auto& parameters = replicas_by_step(run);
  const auto gradients = by_step<trace::ReducedGradients>(run);
  ChangesOfRanks changes;
  for (const auto* rank : run.ranks) changes.push_back(by_step<trace::BeforeUpdate>(*rank));
  for (const auto& [step, after] : parameters) {
    const auto before = parameters.find(step - 1);
    const auto reduced = gradients.find(step);
    if (before == parameters.end() || reduced == gradients.end()) continue;
    const auto groups = groups_of_equal(after);
    if (groups.tensor < 0 || groups_of_equal(replicas_of(reduced->second)).tensor >= 0) continue;
    const auto updated = before_update(changes, before->second, step);
    if (updated.empty() || groups_of_equal(updated).tensor >= 0) continue;
    return Finding{.ranks = odd_ones_out(run.numbers, groups.of),
                   .step = step,
                   .evidence =
                       "equal parameters, equal gradients and equal learning rates gave "
                       "different parameters: what else the update goes by (weight "
                       "decay, momentum, its count of steps) differs by rank"};
  }
  return std::nullopt;
}

// What a rank did in one pass over the train data.
struct PassWork {
  std::size_t batches = 0;
  std::int64_t updates = 0;     // of it
  std::int64_t first_step = 0;  // at its begin
};

std::vector<PassWork> work_by_pass(const trace::ParticipantTrace& rank) {
  std::vector<PassWork> passes;
  for (const auto& pass : cut_at_passes(rank, "train"))
    if (pass.ended)
      passes.push_back({.batches = pass.batches().size(),
                        .updates = static_cast<std::int64_t>(pass.all<trace::Update>().size()),
                        .first_step = pass.step});
  return passes;
}

// The first pass in which ranks made different numbers of updates with equally many batches. (With unequal
// ones the others' updates are done for the rank that has fewer: join.)
std::optional<Finding> counts(const Run& run) {
  if (update_skipped(run)) return std::nullopt;
  std::vector<std::vector<PassWork>> work;
  for (const auto* rank : run.ranks) work.push_back(work_by_pass(*rank));
  std::size_t passes = work.front().size();
  for (const auto& rank : work) passes = std::min(passes, rank.size());
  for (std::size_t pass = 0; pass < passes; ++pass) {
    std::vector<std::int64_t> updates;
    std::vector<std::size_t> batches;
    for (const auto& rank : work) {
      updates.push_back(rank[pass].updates);
      batches.push_back(rank[pass].batches);
    }
    const auto odd = odd_ones_out(run.numbers, updates);
    if (odd.empty() || !odd_ones_out(run.numbers, batches).empty()) continue;
    const auto [least, most] = std::minmax_element(updates.begin(), updates.end());
    return Finding{
        .ranks = odd,
        .step = work.front()[pass].first_step,
        .evidence = fmt::format("of {} batches in pass {} some ranks made {}, others {}",
                                batches.front(), pass + 1, plural(*least, "update"), *most)};
  }
  return std::nullopt;
}

std::optional<Finding> left_out(const Run& run) {
  const auto& update = update_skipped(run);
  if (!update) return std::nullopt;
  return Finding{.ranks = update->ranks,
                 .step = update->step,
                 .evidence = ranks_text(update->ranks) +
                             " left out an update that the others made: the next one comes "
                             "behind the collectives of a later update of theirs"};
}

Verdict update_differs(const Run& run) {
  // Without an engine each rank may go by rates of its own: for its share of an optimizer, or between two averages.
  const bool may_choose = !has_ddp(run) && (stay_equal(replicas_by_step(run)) ||
                                            run.once(are_averaged) || run.once(send_their_parts));
  if (!may_choose && !train_one_model(run))
    return not_triggered("no sign that these ranks are replicas of one model");
  const auto updates = by_step<trace::Update>(run);
  if (updates.empty()) return not_triggered("no step has every rank's update");
  std::optional<Finding> first;
  for (auto finding : {left_out(run), rates(run, updates), results(run), counts(run),
                       part_that_moves_otherwise(run)})
    if (finding && (!first || finding->step < first->step)) first = std::move(finding);
  if (first && may_choose) first->severity = Severity::advice;
  return first ? found(*first) : clean();
}

}  // namespace
}  // namespace lockstep::diagnose
