#include <lockstep/diagnose/passes.h>

#include <algorithm>
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
      if (const auto* begin = std::get_if<trace::PassBegin>(&event.payload))
        begin_pass(*begin, event.step);
      else if (const auto* end = std::get_if<trace::PassEnd>(&event.payload))
        end_pass(*end);
      else if (const auto* samples = std::get_if<trace::Samples>(&event.payload))
        draw(*samples);
      else if (const auto* call = std::get_if<trace::SetEpoch>(&event.payload))
        set_epoch(call->epoch);
      else if (const auto* metric = std::get_if<trace::Metric>(&event.payload))
        count(*metric);
      else if (const auto* attempt = std::get_if<trace::Attempt>(&event.payload))
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
    if (metric.phase == phase_ && !passes_.empty())
      passes_.back().counts[metric.name] = metric.count;
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

namespace {

// Ids in ascending order. Those that fill most of a range are counted: sorting takes five times as long.
void sort(std::vector<std::int64_t>& ids) {
  if (ids.empty()) return;
  const auto [least, greatest] = std::minmax_element(ids.begin(), ids.end());
  const auto first = static_cast<std::uint64_t>(*least);  // a difference of any two fits
  const auto range = static_cast<std::uint64_t>(*greatest) - first;
  if (range / 4 >= ids.size()) {
    std::sort(ids.begin(), ids.end());
    return;
  }
  std::vector<std::uint32_t> times(static_cast<std::size_t>(range) + 1);
  for (const auto id : ids)
    ++times[static_cast<std::size_t>(static_cast<std::uint64_t>(id) - first)];
  auto next = ids.begin();
  for (std::size_t i = 0; i < times.size(); ++i)
    next = std::fill_n(next, times[i], static_cast<std::int64_t>(first + i));
}

}  // namespace

Draws draws(std::vector<std::int64_t> ids) {
  sort(ids);
  Draws counted;
  counted.total = static_cast<std::int64_t>(ids.size());
  for (auto begin = ids.begin(); begin != ids.end();) {
    auto end = begin + 1;
    while (end != ids.end() && *end == *begin) ++end;
    const std::int64_t times = end - begin;
    counted.least = counted.distinct.empty() ? times : std::min(counted.least, times);
    counted.most = std::max(counted.most, times);
    counted.distinct.push_back(*begin);
    begin = end;
  }
  return counted;
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

std::string of(std::size_t part, std::int64_t whole) {
  return std::to_string(part) + " of " + std::to_string(whole);
}

Draws draws(const RankPass& pass) {
  return draws(pass.order());
}

Draws draws(const Pass& pass) {
  std::vector<std::int64_t> ids;
  for (const auto& rank : pass.ranks)
    for (const auto& batch : rank.batches) ids.insert(ids.end(), batch.begin(), batch.end());
  return draws(std::move(ids));
}

bool has_overlaps_and_gaps(const Draws& all, std::int64_t size) {
  return static_cast<std::int64_t>(all.distinct.size()) < std::min(all.total, size);
}

}  // namespace lockstep::diagnose
