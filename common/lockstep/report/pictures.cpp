#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/passes.h>
#include <lockstep/diagnose/stall.h>
#include <lockstep/diagnose/tolerance.h>
#include <lockstep/report/pictures.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>

namespace lockstep::report {
namespace {

using diagnose::Run;

constexpr std::size_t kPasses = 2;

// Four significant digits.
double rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return std::strtod(text, nullptr);
}

// To the microsecond.
double seconds(std::int64_t ns) {
  return std::round(static_cast<double>(ns) / 1e3) / 1e6;
}

std::vector<Pictures::Apart> divergence_of(const Run& run) {
  std::vector<Pictures::Apart> points;
  if (run.devices || run.world_size < 2 || !run.complete) return points;
  const auto steps = diagnose::replicas_by_step(run);
  const auto every = every_shown(steps.size());
  std::size_t index = 0;
  for (const auto& [step, replicas] : steps) {
    if (index++ % every != 0) continue;
    const auto spread = diagnose::spread_of(replicas);
    const bool finite = spread.finite == replicas.size();
    points.push_back(
        {step, finite ? rounded(spread.distance) : std::numeric_limits<double>::quiet_NaN()});
  }
  return points;
}

struct FirstDifference {
  Pictures::Difference what;
  std::int64_t time_ns = 0;
};

std::optional<FirstDifference> first_difference(const trace::Trace& trace,
                                                const diagnose::Calls& calls) {
  const auto mismatch = diagnose::first_mismatch(calls);
  const auto stall = diagnose::stall_of(trace);
  if (mismatch) {
    const auto time_ns = diagnose::entered_ns(*mismatch->calls);
    const auto& call = *mismatch->calls->front().collective;
    if (!stall || time_ns <= stall->time_ns)
      return FirstDifference{{call.group, call.sequence, mismatch->odd}, time_ns};
  }
  if (!stall) return std::nullopt;
  FirstDifference first{{stall->group, stall->sequence, {}}, stall->time_ns};
  for (const auto* rank : stall->culprits()) first.what.ranks.push_back(rank->rank);
  return first;
}

using RankCalls = std::vector<const diagnose::Call*>;

// A rank's last calls; where the difference lies before those, as many around it.
RankCalls shown_of(RankCalls calls, const std::optional<FirstDifference>& difference) {
  std::stable_sort(calls.begin(), calls.end(),
                   [](const auto* a, const auto* b) { return a->time_ns < b->time_ns; });
  if (calls.size() <= Pictures::kMostCalls) return calls;
  auto begin = calls.end() - Pictures::kMostCalls;
  if (difference) {
    const auto at = std::find_if(calls.begin(), calls.end(), [&](const auto* call) {
      return call->time_ns >= difference->time_ns;
    });
    begin = std::min(begin,
                     at - std::min<std::ptrdiff_t>(at - calls.begin(), Pictures::kMostCalls / 2));
  }
  return {begin, begin + Pictures::kMostCalls};
}

void draw_timeline(const trace::Trace& trace, const Run& run, Pictures& pictures) {
  const auto calls = diagnose::calls_of(run);
  const auto difference = first_difference(trace, calls);
  if (difference) pictures.first_difference = difference->what;
  std::map<int, RankCalls> by_rank;
  for (const auto& [key, place] : calls)
    for (const auto& call : place) by_rank[call.rank].push_back(&call);
  auto start = std::numeric_limits<std::int64_t>::max();
  for (auto& [rank, made] : by_rank) {
    const auto all = made.size();
    made = shown_of(std::move(made), difference);
    pictures.truncated = pictures.truncated || made.size() < all;
    start = std::min(start, made.front()->time_ns);
  }
  for (const auto& [rank, made] : by_rank)
    for (const auto* call : made) {
      const auto& what = *call->collective;
      pictures.calls.push_back({.rank = rank,
                                .sequence = what.sequence,
                                .operation = what.op,
                                .group = what.group,
                                .entered_s = seconds(call->time_ns - start),
                                .left_s = {},
                                .failed = what.failed != 0});
      if (call->left_ns != 0) pictures.calls.back().left_s = seconds(call->left_ns - start);
    }
}

std::vector<Pictures::Pass> first_passes(const Run& run) {
  std::vector<Pictures::Pass> passes;
  const auto samples = diagnose::global_size(run, "train");
  for (const auto* rank : run.ranks) {
    const auto of_rank = diagnose::passes_of(*rank, "train");
    for (std::size_t k = 0; k < std::min(of_rank.size(), kPasses); ++k) {
      if (passes.size() <= k)
        passes.push_back({of_rank[k].epoch, samples, 1,
                          std::vector<std::vector<std::int64_t>>(
                              static_cast<std::size_t>(std::max(run.world_size, 0)))});
      passes[k].drawn.at(static_cast<std::size_t>(rank->participant.rank)) = of_rank[k].order();
    }
  }
  return passes;
}

// Keeps every k-th id in all passes, so that they and the ranks can be compared. No k that has a divisor in
// common with the number of ranks: of ids dealt in turn, some ranks would seem to have none.
void thin(std::vector<Pictures::Pass>& passes, std::int64_t world_size) {
  std::vector<std::int64_t> all;
  for (const auto& pass : passes)
    for (const auto& ids : pass.drawn) all.insert(all.end(), ids.begin(), ids.end());
  if (all.size() <= Pictures::kMostIds) return;
  const auto distinct = diagnose::draws(all).distinct;
  const auto place_of = [&](std::int64_t id) {
    return std::lower_bound(distinct.begin(), distinct.end(), id) - distinct.begin();
  };
  std::vector<std::size_t> times(distinct.size());
  for (const auto id : all) ++times[static_cast<std::size_t>(place_of(id))];
  const auto left = [&](std::size_t every) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < times.size(); i += every) count += times[i];
    return count;
  };
  const auto too_many = [&](std::int64_t every) {
    const auto step = static_cast<std::size_t>(every);
    return step < times.size() && left(step) > Pictures::kMostIds;
  };
  std::int64_t every = 2;
  while (std::gcd(every, world_size) != 1 || too_many(every)) ++every;
  for (auto& pass : passes) {
    pass.every = every;
    for (auto& ids : pass.drawn)
      std::erase_if(ids, [&](std::int64_t id) { return place_of(id) % every != 0; });
  }
}

}  // namespace

std::size_t every_shown(std::size_t points) {
  return points / (Pictures::kMostPoints + 1) + 1;
}

Pictures pictures_of(const trace::Trace& trace) {
  const Run run(trace);
  Pictures pictures;
  pictures.divergence = divergence_of(run);
  pictures.tolerance = diagnose::kReplicaTolerance;
  draw_timeline(trace, run, pictures);
  pictures.passes = first_passes(run);
  thin(pictures.passes, run.world_size);
  return pictures;
}

}  // namespace lockstep::report
