#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/passes.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace lockstep::diagnose {

bool is_same(Batch a, Batch b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

std::vector<std::int64_t> RankPass::order() const {
  std::vector<std::int64_t> ids;
  for (const auto& batch : batches) ids.insert(ids.end(), batch.begin(), batch.end());
  return ids;
}

std::int64_t RankPass::total() const {
  std::int64_t count = 0;
  for (const auto& batch : batches) count += static_cast<std::int64_t>(batch.size());
  return count;
}

std::optional<std::int64_t> RankPass::epoch_at_first_batch() const {
  auto told = epoch_before;
  for (const auto& call : calls)
    if (call.batches_before == 0) told = call.epoch;
  return told;
}

namespace {

// set_epoch calls, but for those inside a pass of another phase, in order.
struct EpochTold {
  std::size_t place;  // among the rank's events
  std::int64_t attempt, epoch;
};
std::vector<EpochTold> epochs_told(const trace::ParticipantTrace& rank, const std::string& phase) {
  const auto others = cut_at_passes(rank, phase == "train" ? "evaluation" : "train");
  std::vector<EpochTold> told;
  std::int64_t attempt = 0;
  auto other = others.begin();
  each_of<trace::SetEpoch, trace::Attempt>(
      rank, 0, [&](std::size_t place, const trace::Event& event) {
        while (other != others.end() && other->end <= place) ++other;
        if (const auto* next = event.as<trace::Attempt>())
          attempt = next->restart_count;
        else if (other == others.end() || place < other->begin)
          told.push_back({place, attempt, event.as<trace::SetEpoch>()->epoch});
      });
  return told;
}

}  // namespace

std::vector<RankPass> passes_of(const trace::ParticipantTrace& rank, const std::string& phase) {
  const auto epochs = epochs_told(rank, phase);
  auto told = epochs.begin();
  std::vector<RankPass> passes;
  const auto cuts = cut_at_passes(rank, phase);
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const auto& cut = cuts[i];
    RankPass pass{.step = cut.step, .attempt = cut.attempt, .epoch = cut.epoch, .ended = cut.ended};
    for (const auto& batch : cut.batches()) pass.batches.push_back(batch.event->ids);
    while (told != epochs.end() && told->place < cut.begin) ++told;
    if (told != epochs.begin() && std::prev(told)->attempt == cut.attempt)
      pass.epoch_before = std::prev(told)->epoch;
    for (; told != epochs.end() && told->place < cut.end; ++told) {
      auto before = cut;
      before.end = told->place;
      pass.calls.push_back({told->epoch, before.batches().size()});
    }
    const auto next = i + 1 < cuts.size() ? cuts[i + 1].begin : rank.events.size();
    for (const auto& metric : rank.from<trace::Metric>(cut.begin, next))
      if (metric.event->phase == phase) pass.metrics.push_back(metric.event);
    passes.push_back(std::move(pass));
  }
  return passes;
}

namespace {

// Tells `what` each id of the batches, in ascending order, and how often it is there. `walk` gives the batches,
// one after another, to what it is called with. Ids that fill most of a range are counted: sorting takes five
// times as long.
template <class Walk, class What>
void tally(Walk walk, What what) {
  std::size_t total = 0;
  auto least = std::numeric_limits<std::int64_t>::max(),
       most = std::numeric_limits<std::int64_t>::min();
  walk([&](Batch batch) {
    total += batch.size();
    for (const auto id : batch) least = std::min(least, id), most = std::max(most, id);
  });
  if (total == 0) return;
  const auto first = static_cast<std::uint64_t>(least);  // a difference of any two fits
  const auto range = static_cast<std::uint64_t>(most) - first;
  if (range / 4 >= total) {
    std::vector<std::int64_t> ids;
    ids.reserve(total);
    walk([&](Batch batch) { ids.insert(ids.end(), batch.begin(), batch.end()); });
    std::sort(ids.begin(), ids.end());
    for (auto begin = ids.begin(); begin != ids.end();) {
      const auto end = std::find_if(begin, ids.end(), [&](auto id) { return id != *begin; });
      what(*begin, end - begin);
      begin = end;
    }
    return;
  }
  std::vector<std::uint32_t> times(static_cast<std::size_t>(range) + 1);
  walk([&](Batch batch) {
    for (const auto id : batch)
      ++times[static_cast<std::size_t>(static_cast<std::uint64_t>(id) - first)];
  });
  for (std::size_t i = 0; i < times.size(); ++i)
    if (times[i] > 0) what(static_cast<std::int64_t>(first + i), std::int64_t{times[i]});
}

void add(DrawCounts& counts, std::int64_t times) {
  counts.least = counts.different == 0 ? times : std::min(counts.least, times);
  counts.most = std::max(counts.most, times);
  counts.total += times;
  ++counts.different;
}

template <class Walk>
Draws draws_in(Walk walk) {
  Draws all;
  tally(walk, [&](std::int64_t id, std::int64_t times) {
    add(all, times);
    all.distinct.push_back(id);
  });
  return all;
}

auto batches_of(const RankPass& pass) {
  return [&pass](auto what) {
    for (const auto& batch : pass.batches) what(batch);
  };
}

auto batches_of(const Pass& pass) {
  return [&pass](auto what) {
    for (const auto& rank : pass.ranks) batches_of(rank)(what);
  };
}

std::vector<Pass> find_passes(const Run& run, const std::string& phase) {
  // By attempt and place in it: a rank that ended early in one has fewer passes there.
  std::map<std::pair<std::int64_t, std::size_t>, Pass> side_by_side;
  for (const auto* rank : run.ranks) {
    std::map<std::int64_t, std::size_t> begun;
    for (auto& pass : passes_of(*rank, phase)) {
      const auto place = begun[pass.attempt]++;
      if (pass.ended) side_by_side[{pass.attempt, place}].ranks.push_back(std::move(pass));
    }
  }
  std::vector<Pass> passes;
  for (auto& [place, pass] : side_by_side)
    if (pass.ranks.size() == run.ranks.size()) passes.push_back(std::move(pass));
  for (auto& pass : passes)
    tally(batches_of(pass), [&](std::int64_t id, std::int64_t times) {
      add(pass.drawn, times);
      pass.by_content = pass.by_content || id < 0;
    });
  return passes;
}

using Passes = std::map<std::string, std::vector<Pass>>;

Passes find_all_passes(const Run& run) {
  Passes all;
  for (const std::string phase : {"train", "evaluation"}) all[phase] = find_passes(run, phase);
  return all;
}

}  // namespace

const std::vector<Pass>& finished_passes(const Run& run, const std::string& phase) {
  return run.once(find_all_passes).at(phase);
}

bool is_same_order(const Pass& one, const Pass& other) {
  return std::ranges::equal(one.ranks, other.ranks, [](const auto& a, const auto& b) {
    return std::ranges::equal(a.batches, b.batches, is_same) || a.order() == b.order();
  });
}

bool all_in_one_order(std::span<const Pass> passes) {
  return std::ranges::all_of(passes,
                             [&](const Pass& pass) { return is_same_order(pass, passes.front()); });
}

std::vector<const trace::Dataset*> train_sets(const Run& run) {
  std::vector<const trace::Dataset*> sets;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<trace::Dataset>())
      if (at.event->phase == "train") {
        sets.push_back(at.event);
        break;
      }
  if (sets.size() != run.ranks.size()) sets.clear();
  return sets;
}

std::string of(std::int64_t part, std::int64_t whole) {
  return std::to_string(part) + " of " + std::to_string(whole);
}

Draws draws(const std::vector<std::int64_t>& ids) {
  return draws_in([&](auto what) { what(ids); });
}

Draws draws(const RankPass& pass) {
  return draws_in(batches_of(pass));
}

Draws draws(const Pass& pass) {
  return draws_in(batches_of(pass));
}

std::int64_t in_both(const Draws& a, const Draws& b) {
  std::vector<std::int64_t> both;
  std::set_intersection(a.distinct.begin(), a.distinct.end(), b.distinct.begin(), b.distinct.end(),
                        std::back_inserter(both));
  return static_cast<std::int64_t>(both.size());
}

bool has_overlaps_and_gaps(const DrawCounts& all, std::int64_t size) {
  return all.different < std::min(all.total, size);
}

}  // namespace lockstep::diagnose
