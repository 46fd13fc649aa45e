// Pitfalls of set_epoch: never told, told to a copy, told differently, told too late.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/passes.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>

namespace lockstep::diagnose {
namespace {
Verdict missing_set_epoch(const Run& run);
Verdict set_epoch_on_copy(const Run& run);
Verdict epoch_differs_by_rank(const Run& run);
Verdict epoch_set_after_prefetch(const Run& run);
}  // namespace

// All need samples of two finished train passes, or more.
std::vector<Detector> epoch_detectors() {
  return {
      // Rule: a shuffled order that is the same in every pass of a model, and no second epoch was told meanwhile; or that
      // is the same in passes 0 and 1, and each epoch is told after its own pass.
      // Not fooled by an order that is ascending by choice, by samplers that reshuffle themselves,
      // nor by an epoch told twice.
      {.slug = "missing-set-epoch",
       .equation = Equation::new_order,
       .whole = true,
       .needs = {"pass_begin", "samples", "pass_end"},
       .fewest = 1,
       .accounts_for = {"resume-repeats-epoch"},
       .detect = missing_set_epoch},
      // Rule: the same, though different epochs had been told when the passes began. Advice: the passes over a stream,
      // which its data set numbers, have the same samples in the same order. That order may be no shuffled one.
      {.slug = "set-epoch-on-copy",
       .equation = Equation::new_order,
       .needs = {"pass_begin", "samples", "pass_end"},
       .fewest = 1,
       .accounts_for = {"resume-repeats-epoch"},
       .detect = set_epoch_on_copy},
      // Rule: when a pass began the ranks had been told different epochs, and it has overlaps and
      // gaps. Not fooled by epochs that nothing depends on.
      {.slug = "epoch-differs-by-rank",
       .equation = Equation::own_samples,
       .needs = {"pass_begin", "samples", "pass_end", "set_epoch", "dataset"},
       .accounts_for = {"shares-of-data-overlap"},
       .detect = epoch_differs_by_rank},
      // Rule: inside a pass a new epoch is told, and the pass began with the last pass's first
      // batch; or what was drawn before and after the call overlaps. Where the call came between
      // the dealing of a batch and its fetch: the pass begins with the last pass's first batches,
      // draws samples of those again, and is as long. Not fooled by the next pass's epoch told at
      // the end of this one, by a call between a pass's beginning and its first batch, nor by
      // passes that all begin with one batch on purpose.
      {.slug = "epoch-set-after-prefetch",
       .equation = Equation::new_order,
       .needs = {"pass_begin", "samples", "pass_end", "set_epoch"},
       .fewest = 1,
       .detect = epoch_set_after_prefetch},
  };
}

namespace {
constexpr auto kNever = std::numeric_limits<std::int64_t>::max();  // a step

const char* const kTwoPasses = "fewer than two train passes that every rank finished";
const char* const kNoPositions =
    "samples of a stream have no positions: whether their order is shuffled is not known";

constexpr std::int64_t kEnoughPairs = 16;  // to tell a shuffled order from an ascending one

// Neighbours in a row, and those of them that stand in falling order: half of them where the row is shuffled. One fall
// or a few are the end of a padded shard, or the turn from one loader worker to the next.
struct Falls {
  std::int64_t pairs = 0, falls = 0;
  void add(Batch row) {
    for (std::size_t i = 1; i < row.size(); ++i, ++pairs) falls += row[i] < row[i - 1];
  }
  bool is_shuffled() const { return 4 * falls >= pairs; }
};

// Its samples are; or the batches, by their first samples, as where samples of one length stand together.
bool looks_shuffled(const Pass& pass) {
  Falls samples, batches;
  for (const auto& rank : pass.ranks) {
    samples.add(rank.order());
    std::vector<std::int64_t> firsts;
    for (const auto& batch : rank.batches)
      if (!batch.empty()) firsts.push_back(batch.front());
    batches.add(firsts);
  }
  return samples.is_shuffled() || (batches.pairs >= kEnoughPairs && batches.is_shuffled());
}

std::int64_t pairs_in(const Pass& pass) {
  std::int64_t pairs = 0;
  for (const auto& rank : pass.ranks) pairs += std::max<std::int64_t>(0, rank.total() - 1);
  return pairs;
}

// How many different epochs were in force at the beginning of passes, at the rank that had most. A
// sampler that was told nothing is in epoch 0.
std::size_t epochs_in_force(const std::vector<Pass>& passes) {
  std::size_t most = 0;
  for (std::size_t r = 0; r < passes.front().ranks.size(); ++r) {
    std::set<std::int64_t> epochs;
    for (const auto& pass : passes) epochs.insert(pass.ranks[r].epoch_at_first_batch().value_or(0));
    most = std::max(most, epochs.size());
  }
  return most;
}

// Told between two steps.
std::size_t epochs_told(const Run& run, std::int64_t from = -1, std::int64_t to = kNever) {
  std::size_t most = 0;
  for (const auto* rank : run.ranks) {
    std::set<std::int64_t> epochs;
    for (const auto& at : rank->all<trace::SetEpoch>())
      if (at.step >= from && at.step < to) epochs.insert(at.event->epoch);
    most = std::max(most, epochs.size());
  }
  return most;
}

// The passes that one model was trained with, between two steps. A job may train one after another, such as a teacher
// and then its student; its attempts train the same.
struct PassesOfModel {
  std::int64_t from = -1, to = kNever;
  std::span<const Pass> passes = {};
};

std::vector<PassesOfModel> passes_of_models(const Run& run) {
  const auto& rank = *run.ranks.front();
  std::vector<PassesOfModel> models(1);
  if (rank.last_attempt == 0)
    for (const auto& at : rank.all<trace::Engine>()) {
      if (at.step <= 0) continue;
      models.back().to = at.step;
      models.push_back({.from = at.step});
    }
  const auto& passes = finished_passes(run, "train");  // in the order of their steps
  const auto before = [&](std::int64_t step) {
    return std::find_if(passes.begin(), passes.end(),
                        [&](const Pass& pass) { return pass.step() >= step; });
  };
  for (auto& model : models) model.passes = {before(model.from), before(model.to)};
  return models;
}

// Why all passes are not known to go through one shuffled order; nothing where they are.
std::optional<Verdict> not_frozen(std::span<const Pass> passes) {
  if (passes.size() < 2) return not_triggered(kTwoPasses);
  if (passes.front().by_content) return not_triggered(kNoPositions);
  if (!all_in_one_order(passes)) return clean();
  if (pairs_in(passes.front()) < kEnoughPairs)
    return not_triggered("too few samples to tell a shuffled order");
  if (!looks_shuffled(passes.front())) return clean();
  return std::nullopt;
}

bool is_frozen_though_told(const std::vector<Pass>& passes) {
  return all_in_one_order(passes) && epochs_in_force(passes) >= 2;
}

// An epoch told inside the pass that was not in force when it began; nothing where none was.
std::optional<EpochCall> new_epoch_inside(const RankPass& pass) {
  for (const auto& call : pass.calls)
    if (!pass.epoch_before || call.epoch != *pass.epoch_before) return call;
  return std::nullopt;
}

bool begins_as(const RankPass& pass, const RankPass& last) {
  return !pass.batches.empty() && !last.batches.empty() &&
         is_same(pass.batches.front(), last.batches.front());
}

// No id is drawn twice, but for a sampler's padding, which repeats fewer ids than there are ranks.
bool is_of_one_order(const Pass& pass) {
  return pass.drawn.again() < static_cast<std::int64_t>(pass.ranks.size());
}

// How many batches both passes begin with. 0 where they differ in length, or are of one epoch.
std::size_t stale_batches(const RankPass& pass, const RankPass& last) {
  if (pass.total() != last.total() || pass.epoch_at_first_batch() == last.epoch_at_first_batch())
    return 0;
  std::size_t count = 0;
  while (count < pass.batches.size() && count < last.batches.size() &&
         is_same(pass.batches[count], last.batches[count]))
    ++count;
  return count;
}

// The pass is two orders, one after the other. `cut` has the number of batches that each rank drew from the first one.
// Neither half repeats an id, but for the few repeats of a padded shard, and more ids than those are in both halves.
bool is_of_two_orders(const Pass& pass, const std::vector<std::size_t>& cut) {
  std::vector<std::int64_t> before, after;
  for (std::size_t r = 0; r < pass.ranks.size(); ++r)
    for (std::size_t b = 0; b < pass.ranks[r].batches.size(); ++b) {
      auto& side = b >= cut[r] ? after : before;
      const auto batch = pass.ranks[r].batches[b];
      side.insert(side.end(), batch.begin(), batch.end());
    }
  const auto first = draws(before), second = draws(after);
  const auto padding = static_cast<std::int64_t>(pass.ranks.size());  // fewer repeats than this
  return first.again() < padding && second.again() < padding && in_both(first, second) >= padding;
}

// Each epoch is told when its pass is over: pass 1 still has the order of epoch 0, as pass 0 had without being told.
bool are_told_too_late(std::span<const Pass> passes) {
  if (passes.size() < 2 || passes.front().by_content || !all_in_one_order(passes.first(2)) ||
      pairs_in(passes.front()) < kEnoughPairs || !looks_shuffled(passes.front()))
    return false;
  for (std::size_t k = 0; k < passes.size(); ++k)
    for (const auto& rank : passes[k].ranks) {
      const auto in_force = rank.epoch_at_first_batch();
      const auto late = static_cast<std::int64_t>(k) - 1;
      if (k == 0 ? in_force.has_value() : in_force != late) return false;
      if (!rank.calls.empty()) return false;  // inside a pass: epoch_set_after_prefetch()
    }
  return true;
}

Verdict missing_set_epoch(const Run& run) {
  std::optional<Verdict> verdict;
  for (const auto& [from, to, passes] : passes_of_models(run)) {
    if (are_told_too_late(passes))
      return found({.ranks = run.numbers,
                    .step = passes[1].step(),
                    .evidence = "passes 0 and 1 went through one shuffled order: each epoch is "
                                "told when its pass is over"});
    auto other = not_frozen(passes);
    if (!other && epochs_told(run, from, to) < 2)
      return found({.ranks = run.numbers,
                    .step = passes[1].step(),
                    .evidence = fmt::format(
                        "{} passes went through one shuffled order, and no second epoch was told",
                        passes.size())});
    if (!verdict || !other || other->state == State::clean) verdict = other.value_or(clean());
  }
  return *verdict;
}

// A stream's data set counts epochs in the program's process, and the workers that read it go on with copies of it.
std::optional<Finding> counted_on_copy(const Run& run) {
  const auto& passes = finished_passes(run, "train");
  if (passes.size() < 2 || !passes.front().by_content ||
      passes.front().drawn.different < kEnoughPairs || !all_in_one_order(passes))
    return std::nullopt;
  std::set<std::int64_t> epochs;
  for (const auto& pass : passes) epochs.insert(pass.ranks.front().epoch);
  if (epochs.size() < 2) return std::nullopt;
  return Finding{.severity = Severity::advice,
                 .ranks = run.numbers,
                 .step = passes[1].step(),
                 .evidence = fmt::format(
                     "{} passes of {} epochs had the same samples in the same order: the order may "
                     "be meant, or what reads the data set is a copy that does not count epochs",
                     passes.size(), epochs.size())};
}

Verdict set_epoch_on_copy(const Run& run) {
  if (auto counted = counted_on_copy(run)) return found(std::move(*counted));
  const auto& passes = finished_passes(run, "train");
  if (auto other = not_frozen(passes)) return *other;
  const auto epochs = epochs_in_force(passes);
  if (epochs < 2) return clean();
  return found(
      {.ranks = run.numbers,
       .step = passes[1].step(),
       .evidence = fmt::format(
           "{} passes went through one shuffled order, though {} different epochs had been told",
           passes.size(), epochs)});
}

Verdict epoch_differs_by_rank(const Run& run) {
  const auto& passes = finished_passes(run, "train");
  if (passes.size() < 2) return not_triggered(kTwoPasses);
  const auto size = global_size(run, "train");
  if (size == 0) return not_triggered(kNoDatasetSize);
  bool any_told = false;
  for (const auto& pass : passes) {
    std::vector<std::int64_t> epochs;
    for (const auto& rank : pass.ranks) {
      any_told = any_told || rank.epoch_at_first_batch().has_value();
      epochs.push_back(rank.epoch_at_first_batch().value_or(0));
    }
    const auto odd = odd_ones_out(run.numbers, epochs);
    if (odd.empty()) continue;
    const auto& all = pass.drawn;
    if (!has_overlaps_and_gaps(all, size)) continue;
    const auto [least, most] = std::minmax_element(epochs.begin(), epochs.end());
    return found({.ranks = odd,
                  .step = pass.step(),
                  .evidence = fmt::format("ranks began a pass in epochs {} to {}, and drew {} "
                                          "different samples of {} in {} draws",
                                          *least, *most, all.different, size, all.total)});
  }
  return any_told ? clean() : not_triggered("no epoch was told before a pass");
}

Verdict epoch_set_after_prefetch(const Run& run) {
  const auto& passes = finished_passes(run, "train");
  if (passes.size() < 2) return not_triggered(kTwoPasses);
  if (epochs_told(run) == 0) return not_triggered("no epoch was told");
  if (passes.front().by_content) return not_triggered(kNoPositions);
  if (pairs_in(passes.front()) < kEnoughPairs)
    return not_triggered("too few samples to tell a shuffled order");
  if (is_frozen_though_told(passes) || !looks_shuffled(passes.front())) return clean();
  for (std::size_t k = 1; k < passes.size(); ++k) {
    std::vector<int> late, stale, begun_early;
    std::vector<std::size_t> at_call, at_change;  // batches before it
    for (std::size_t r = 0; r < run.ranks.size(); ++r) {
      const auto &now = passes[k].ranks[r], &last = passes[k - 1].ranks[r];
      const auto call = new_epoch_inside(now);
      at_call.push_back(call ? call->batches_before : now.batches.size());
      at_change.push_back(stale_batches(now, last));
      if (at_change.back() > 0) begun_early.push_back(run.numbers[r]);
      if (!call) continue;
      late.push_back(run.numbers[r]);
      if (begins_as(now, last)) stale.push_back(run.numbers[r]);
    }
    if (!late.empty() && (!stale.empty() || is_of_two_orders(passes[k], at_call)))
      return found({.ranks = stale.empty() ? late : stale,
                    .step = passes[k].step(),
                    .evidence = fmt::format(
                        "pass {} was told its epoch after it began, and {}", k,
                        stale.empty() ? "mixes the samples of two orders"
                                      : "began with the first batch of the pass before")});
    // Dealt before the call, and fetched after it.
    if (!begun_early.empty() && is_of_one_order(passes[k - 1]) &&
        is_of_two_orders(passes[k], at_change))
      return found({.ranks = begun_early,
                    .step = passes[k].step(),
                    .evidence = fmt::format("pass {} began with the first batch of the pass "
                                            "before, and went on in the order of another epoch",
                                            k)});
  }
  return clean();
}

}  // namespace
}  // namespace lockstep::diagnose
