// Pitfalls of the data: what each rank holds, and the edges of what it draws.
#include <lockstep/base/hash.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/passes.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace lockstep::diagnose {
namespace {
Verdict dataset_unseeded(const Run& run);
Verdict file_order_differs(const Run& run);
Verdict tail_never_seen(const Run& run);
Verdict padding_overruns(const Run& run);
Verdict empty_shard(const Run& run);
}  // namespace

std::vector<Detector> data_detectors() {
  return {
      // Rule: ranks reach the same ids and find other samples there. Not fooled by ranks that hold
      // different parts of one data set, whose ids differ too. Of several sets that are drawn from side by
      // side, the one that not all ranks hold.
      {.slug = "dataset-unseeded",
       .equation = Equation::own_samples,
       .needs = {"dataset"},
       .accounts_for = {"inputs-differ", "samples-differ-across-ranks"},
       .detect = dataset_unseeded},
      // Rule: ranks reach the same samples in another order, and a pass has overlaps and gaps. Not
      // fooled by ranks that split by id, for whom order does not matter.
      {.slug = "file-order-differs",
       .equation = Equation::own_samples,
       .needs = {"dataset", "pass_begin", "samples", "pass_end"},
       .accounts_for = {"shares-of-data-overlap", "samples-differ-across-ranks"},
       .detect = file_order_differs},
      // Needs data sets, and samples of two train passes in different orders. Rule: fewer samples
      // than W are drawn in none of them, which is no chance. Not fooled by a sampler that permutes
      // and then cuts: it misses others each time; nor by ids that are no positions.
      {.slug = "tail-never-seen",
       .equation = Equation::own_samples,
       .needs = {"dataset", "pass_begin", "samples", "pass_end"},
       .detect = tail_never_seen},
      // Needs data sets whose ids are positions (their hash says so), and samples; W > 2N. Rule: an
      // id beyond the data set was drawn, whatever came after.
      {.slug = "padding-overruns",
       .equation = Equation::own_samples,
       .needs = {"dataset", "samples"},
       .fewest = 1,
       .complete = false,
       .stage = Stage::ranks_differ,
       .detect = padding_overruns},
      // Rule: a rank drew nothing in a train pass that it began and ended. Not fooled by a shard smaller than a batch that is drawn
      // as a smaller batch.
      {.slug = "empty-shard",
       .equation = Equation::own_samples,
       .needs = {"dataset", "pass_begin", "pass_end"},
       .fewest = 1,
       .complete = false,
       .stage = Stage::ranks_differ,
       .detect = empty_shard},
  };
}

namespace {
// Whether every train data set that was recorded is the whole one and has its positions for ids.
// Asked of sizes whose list of ids costs little.
bool ids_are_positions(const Run& run, std::int64_t size) {
  constexpr std::int64_t kMost = 1 << 22;
  if (size > kMost) return false;
  std::vector<std::int64_t> ids(static_cast<std::size_t>(size));
  std::iota(ids.begin(), ids.end(), 0);
  const auto in_order = hash_bytes(ids.data(), ids.size() * sizeof(std::int64_t));
  bool any = false;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<trace::Dataset>()) {
      if (at.event->phase != "train") continue;
      any = true;
      if (at.event->size != size || at.event->ids_in_order != in_order) return false;
    }
  return any;
}

std::int64_t first_not_in(const std::vector<std::int64_t>& ascending) {
  std::int64_t id = 0;
  for (const auto drawn : ascending)
    if (drawn == id) ++id;
  return id;
}

// log10 of the number of ways to choose `some` out of `of`.
double log_choices(std::int64_t of, std::int64_t some) {
  const auto n = static_cast<double>(of), m = static_cast<double>(some);
  return (std::lgamma(n + 1) - std::lgamma(m + 1) - std::lgamma(n - m + 1)) / std::log(10.0);
}

// Each pass leaves out some samples at random: `missing` has how many. log10 of the expected number of sets of `never`
// samples that all passes leave out.
double log_chance_of_never(std::int64_t never, std::int64_t size,
                           const std::vector<std::int64_t>& missing) {
  double chance = log_choices(size, never);
  for (const auto count : missing) chance += log_choices(count, never) - log_choices(size, never);
  return chance;
}

// Each rank's train data set; where it draws from several, the one that not all ranks hold. Empty where these are not
// one on each.
std::vector<const trace::Dataset*> sets_not_shared(const Run& run) {
  const auto key = [](const trace::Dataset& set) {
    return std::pair(set.ids_as_set, set.content_as_set);
  };
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::set<std::size_t>> holders;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : run.ranks[r]->all<trace::Dataset>())
      if (at.event->phase == "train") holders[key(*at.event)].insert(r);
  std::vector<const trace::Dataset*> sets(run.ranks.size());
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : run.ranks[r]->all<trace::Dataset>()) {
      if (at.event->phase != "train" || holders[key(*at.event)].size() == sets.size()) continue;
      if (sets[r] && key(*sets[r]) != key(*at.event)) return {};
      sets[r] = at.event;
    }
  if (std::ranges::find(sets, nullptr) != sets.end()) return {};
  return sets;
}

Verdict dataset_unseeded(const Run& run) {
  if (train_sets(run).empty()) return not_triggered("a rank recorded no train data set");
  const auto sets = sets_not_shared(run);
  // Among the ranks that reach the same ids.
  std::map<std::uint64_t, std::vector<std::size_t>> same_ids;
  for (std::size_t r = 0; r < sets.size(); ++r) same_ids[sets[r]->ids_as_set].push_back(r);
  for (const auto& [hash, members] : same_ids) {
    std::vector<int> ranks;
    std::vector<std::uint64_t> contents;
    for (const auto r : members) {
      ranks.push_back(run.numbers[r]);
      contents.push_back(sets[r]->content_as_set);
    }
    const auto odd = odd_ones_out(ranks, contents);
    if (odd.empty()) continue;
    return found(
        {.ranks = odd,
         .evidence = fmt::format("{} reach the same {} ids, and the samples behind them differ",
                                 lockstep::ranks_text(ranks), sets[members.front()]->size)});
  }
  return clean();
}

Verdict file_order_differs(const Run& run) {
  const auto sets = train_sets(run);
  if (sets.empty()) return not_triggered("a rank recorded no train data set");
  const auto& passes = finished_passes(run, "train");
  if (passes.empty()) return not_triggered(kNoTrainPass);
  std::vector<std::uint64_t> orders;
  for (const auto* set : sets) {
    orders.push_back(set->ids_in_order);
    if (set->ids_as_set != sets.front()->ids_as_set ||
        set->content_as_set != sets.front()->content_as_set)
      return clean();
  }
  const auto odd = odd_ones_out(run.numbers, orders);
  if (odd.empty()) return clean();
  const auto size = global_size(run, "train");
  for (const auto& pass : passes) {
    const auto& all = pass.drawn;
    if (!has_overlaps_and_gaps(all, size)) continue;
    return found({.ranks = odd,
                  .step = pass.step(),
                  .evidence = fmt::format("the ranks reach the same samples in another order; in a "
                                          "pass of {} draws they drew {} samples",
                                          all.total, of(all.different, size))});
  }
  return clean();
}

Verdict tail_never_seen(const Run& run) {
  const auto size = global_size(run, "train");
  if (size == 0) return not_triggered(kNoDatasetSize);
  if (size % run.world_size == 0) return not_applicable("the data divide by the ranks");
  const auto& passes = finished_passes(run, "train");
  if (passes.size() < 2)
    return not_triggered("fewer than two train passes that every rank finished");
  std::vector<std::int64_t> seen, missing;  // in any pass; of each pass, how many
  bool other_order = false;
  for (const auto& pass : passes) {
    const auto all = draws(pass);
    missing.push_back(size - all.different);
    std::vector<std::int64_t> both;
    std::set_union(seen.begin(), seen.end(), all.distinct.begin(), all.distinct.end(),
                   std::back_inserter(both));
    seen = std::move(both);
    for (std::size_t r = 0; r < pass.ranks.size(); ++r)
      other_order = other_order || pass.ranks[r].order() != passes.front().ranks[r].order();
  }
  // Which ids are missing need not be known.
  const auto never = size - static_cast<std::int64_t>(seen.size());
  if (never <= 0 || never >= run.world_size || !other_order) return clean();
  if (log_chance_of_never(never, size, missing) > -2)
    return not_triggered("too few samples or passes: the same ids may be missing by chance");
  const auto from = ids_are_positions(run, size) ? fmt::format(" (from id {})", first_not_in(seen))
                                                 : std::string();
  return found({.ranks = run.numbers,
                .step = passes.front().step(),
                .evidence = fmt::format(
                    "{}{} of {} drawn by no rank in any of {} differently ordered passes",
                    plural(never, "sample"), from, size, passes.size())});
}

Verdict padding_overruns(const Run& run) {
  const auto size = global_size(run, "train");
  if (size == 0) return not_triggered(kNoDatasetSize);
  if (run.world_size <= 2 * size) return not_applicable("at most two ranks a sample");
  std::vector<int> ranks;
  std::int64_t step = -1, worst = -1;
  std::set<std::int64_t> drawn;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : run.ranks[r]->all<trace::Samples>()) {
      if (at.event->phase != "train") continue;
      for (const auto id : at.event->ids) {
        drawn.insert(id);
        if (id >= 0 && id < size) continue;
        if (ranks.empty()) step = at.step;
        if (ranks.empty() || ranks.back() != run.numbers[r]) ranks.push_back(run.numbers[r]);
        worst = std::max(worst, id);
      }
    }
  if (drawn.empty()) return not_triggered("no samples were recorded");
  if (!ids_are_positions(run, size))
    return static_cast<std::int64_t>(drawn.size()) == size
               ? clean()
               : not_triggered("the ids are not known to be positions in the data set");
  if (ranks.empty()) return clean();
  return found({.ranks = ranks,
                .step = step,
                .evidence = fmt::format("id {} was drawn from {} (ids from 0)", worst,
                                        plural(size, "sample"))});
}

// Passes say that they had batches, and no sample of any was recorded.
bool samples_unrecorded(const Run& run) {
  for (const auto* rank : run.ranks) {
    if (!rank->all<trace::Samples>().empty()) continue;
    for (const auto& end : rank->all<trace::PassEnd>())
      if (end.event->batches > 0) return true;
  }
  return false;
}

Verdict empty_shard(const Run& run) {
  if (samples_unrecorded(run))
    return not_triggered("the samples of a rank's batches were not recorded");
  const auto size = global_size(run, "train");
  if (size == 0) return not_triggered(kNoDatasetSize);
  bool any = false;
  std::vector<int> empty;
  std::int64_t step = -1;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    for (const auto& pass : passes_of(*run.ranks[r], "train")) {
      if (!pass.ended) continue;
      any = true;
      if (!pass.batches.empty()) continue;
      if (empty.empty()) step = pass.step;
      empty.push_back(run.numbers[r]);
      break;
    }
  }
  if (!any) return not_triggered("no train pass was finished");
  if (empty.empty()) return clean();
  return found({.ranks = empty,
                .step = step,
                .evidence = "a train pass ended without a batch, of a data set of " +
                            plural(size, "sample")});
}

}  // namespace
}  // namespace lockstep::diagnose
