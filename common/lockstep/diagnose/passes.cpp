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

// Walks one rank's events and cuts out its passes of one phase.
class PassReader {
 public:
  explicit PassReader(std::string phase) : phase_(std::move(phase)) {}

  std::vector<RankPass> read(const trace::ParticipantTrace& rank) {
    for (const auto& event : rank.events) {
      if (const auto* begin = event.as<trace::PassBegin>())
        begin_pass(*begin, event.step);
      else if (const auto* end = event.as<trace::PassEnd>())
        end_pass(*end);
      else if (const auto* samples = event.as<trace::Samples>())
        draw(*samples);
      else if (const auto* call = event.as<trace::SetEpoch>())
        set_epoch(call->epoch);
      else if (const auto* metric = event.as<trace::Metric>())
        count(*metric);
      else if (const auto* attempt = event.as<trace::Attempt>())
        begin_attempt(attempt->restart_count);
    }
    return std::move(passes_);
  }

 private:
  void begin_attempt(std::int64_t number) {
    attempt_ = number;
    epoch_.reset();
    inside_ = inside_other_ = false;  // what the last attempt was in has broken off
  }
  void begin_pass(const trace::PassBegin& begin, std::int64_t step) {
    if (begin.phase != phase_) {
      inside_other_ = true;
      return;
    }
    RankPass pass;
    pass.step = step;
    pass.attempt = attempt_;
    pass.epoch = begin.epoch;
    pass.epoch_before = epoch_;
    passes_.push_back(std::move(pass));
    inside_ = true;
  }
  void end_pass(const trace::PassEnd& end) {
    if (end.phase != phase_) {
      inside_other_ = false;
    } else if (inside_) {
      passes_.back().ended = true;
      inside_ = false;
    }
  }
  void draw(const trace::Samples& samples) {
    if (inside_ && samples.phase == phase_) passes_.back().batches.push_back(samples.ids);
  }
  void count(const trace::Metric& metric) {
    if (metric.phase == phase_ && !passes_.empty()) passes_.back().metrics.push_back(&metric);
  }
  void set_epoch(std::int64_t epoch) {
    if (inside_other_) return;
    epoch_ = epoch;
    if (inside_) passes_.back().calls.push_back({epoch, passes_.back().batches.size()});
  }

  std::string phase_;
  std::vector<RankPass> passes_;
  std::optional<std::int64_t> epoch_;
  std::int64_t attempt_ = 0;
  bool inside_ = false;
  bool inside_other_ = false;
};

}  // namespace

std::vector<RankPass> passes_of(const trace::ParticipantTrace& rank, const std::string& phase) {
  return PassReader(phase).read(rank);
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

bool all_in_one_order(std::span<const Pass> passes) {
  return std::all_of(passes.begin(), passes.end(), [&](const Pass& pass) {
    const auto& first = passes.front().ranks;
    return std::equal(pass.ranks.begin(), pass.ranks.end(), first.begin(), first.end(),
                      [](const auto& a, const auto& b) { return a.order() == b.order(); });
  });
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
