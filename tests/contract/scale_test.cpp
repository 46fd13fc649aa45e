// A diagnosis of many ranks: right, and linear in them.
#include <gtest/gtest.h>
#include <lockstep/diagnose/detector.h>

#include <algorithm>
#include <ctime>
#include <limits>

#include "../support/little_memory.h"
#include "expect.h"
#include "job.h"

namespace lockstep::contract {
namespace {

constexpr int kOdd = 7;
constexpr std::int64_t kCalls = 10;

Job job_of(int ranks) {
  Job job(ranks);
  job.samples = 8 * ranks;
  job.passes = 2;
  job.order = [samples = job.samples, ranks](int rank, int pass) {
    Ids ids;
    for (std::int64_t i = 0; i < 8; ++i) ids.push_back((i * ranks + rank + 13 * pass) % samples);
    return ids;
  };
  return job;
}

// One of every step, on all ranks.
void add_collectives(trace::Trace& trace) {
  for (auto& rank : trace.ranks)
    for (std::int64_t sequence = 1; sequence <= kCalls; ++sequence)
      record(rank, sequence,
             trace::Collective{9, 0, sequence, "0", "allreduce", "sum", -1, "float", {9}});
}

// Every rank's random numbers, of its own.
void add_random_numbers(trace::Trace& trace) {
  for (auto& rank : trace.ranks)
    for (std::uint64_t batch = 0; batch < 4; ++batch) {
      trace::RandomNumbers numbers;
      for (std::uint64_t i = 0; i < 16; ++i) {
        numbers.ids.push_back(static_cast<std::int64_t>(i));
        numbers.hashes.push_back((static_cast<std::uint64_t>(rank.participant.rank) << 32) +
                                 16 * batch + i);
      }
      record(rank, static_cast<std::int64_t>(batch), numbers);
    }
}

trace::Trace healthy(int ranks) {
  auto trace = job_of(ranks).run();
  add_collectives(trace);
  add_random_numbers(trace);
  return trace;
}

// One rank updates with another learning rate.
trace::Trace one_rate_differs(int ranks) {
  auto trace = healthy(ranks);
  for (auto [step, update] : each<trace::Update>(trace.ranks[kOdd])) update.lr = {0.2};
  return trace;
}

// No two ranks have equal parameters, before the first step and ever after.
trace::Trace all_replicas_differ(int ranks) {
  auto job = job_of(ranks);
  job.equal_start = false;
  auto trace = job.run();
  add_random_numbers(trace);
  return trace;
}

// One rank makes one call less than the others.
trace::Trace one_call_less(int ranks) {
  auto trace = healthy(ranks);
  for (auto& rank : trace.ranks) {
    const bool skips = rank.participant.rank == kOdd;
    if (!skips)
      record(rank, kCalls,
             trace::Collective{9, 0, kCalls + 1, "0", "allreduce", "max", -1, "float", {1}});
    for (std::int64_t n = 0; n < 2; ++n)
      record(rank, kCalls,
             trace::Collective{
                 9, 0, kCalls + n + (skips ? 1 : 2), "0", "broadcast", "", 0, "float", {9}});
  }
  return trace;
}

// A rank was killed, and the others' next call failed.
trace::Trace one_rank_dies(int ranks) {
  auto trace = healthy(ranks);
  for (auto& rank : trace.ranks) {
    const bool dies = rank.participant.rank == kOdd;
    rank.closed = !dies;
    if (!dies)
      record(rank, kCalls,
             trace::Collective{9999, 1, kCalls + 1, "0", "allreduce", "sum", -1, "float", {9}});
    trace.ends.push_back({.rank = rank.participant.rank,
                          .how = dies ? "signalled" : "raised",
                          .exit_code = dies ? 137 : 1,
                          .signal = dies ? 9 : 0,
                          .collective = !dies});
  }
  return trace;
}

struct Case {
  const char* name;
  trace::Trace (*make)(int ranks);
  std::vector<std::string> pitfalls;
};

class Scale : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Jobs, Scale,
    testing::Values(Case{"healthy", healthy, {}},
                    Case{"one_rate_differs", one_rate_differs, {"update-differs"}},
                    Case{"all_replicas_differ", all_replicas_differ, {"no-initial-broadcast"}},
                    Case{"one_call_less", one_call_less, {"rank-conditional-collective"}},
                    Case{"one_rank_dies", one_rank_dies, {"peer-dies"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(Scale, TheFindingIsThatOfAFewRanks) {
  const auto few = diagnose::diagnose(GetParam().make(11)).findings;
  const auto many = diagnose::diagnose(GetParam().make(1000)).findings;
  ASSERT_EQ(few.size(), GetParam().pitfalls.size());
  ASSERT_EQ(many.size(), few.size());
  for (std::size_t i = 0; i < few.size(); ++i) {
    EXPECT_EQ(few[i].pitfall, GetParam().pitfalls[i]);
    EXPECT_EQ(many[i].pitfall, few[i].pitfall);
    EXPECT_EQ(many[i].step, few[i].step);
    EXPECT_EQ(many[i].ranks.size() == 1, few[i].ranks.size() == 1);
    EXPECT_EQ(many[i].ranks.front(), few[i].ranks.front());
  }
}

// The processor's time, which others on the machine change somewhat; the least of a few.
double cpu_seconds(const diagnose::Detector& detector, const trace::Trace& trace, int times) {
  double least = std::numeric_limits<double>::max();
  for (int i = 0; i < times; ++i) {
    const auto begin = std::clock();
    detector.verdict(diagnose::Run(trace));
    least = std::min(least, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return least;
}

// What is quadratic takes 64 times as long. What is linear may take twice 8 times, once it has outgrown the
// caches; and sorting has a logarithm. Of what takes a moment even so, nothing is said; what takes too long is
// measured some more times.
TEST_P(Scale, EightTimesTheRanksTakeNowhereNearSixtyFourTimesAsLong) {
  if (test::kSanitized) GTEST_SKIP() << "what a sanitizer does takes most of the time";
  constexpr double kMoment = 0.15;
  const auto few = GetParam().make(800), many = GetParam().make(6400);
  for (const auto& detector : diagnose::detectors()) {
    const double of_few = cpu_seconds(detector, few, 3);
    const double bound = std::max(kMoment, 40 * of_few);
    double of_many = cpu_seconds(detector, many, 2);
    if (of_many >= bound) of_many = cpu_seconds(detector, many, 8);
    EXPECT_LT(of_many, bound) << detector.slug << ", of 800 ranks: " << of_few << " s";
  }
}

}  // namespace
}  // namespace lockstep::contract
