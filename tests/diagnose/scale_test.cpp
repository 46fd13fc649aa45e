// A diagnosis of many ranks: right, and linear in them.
#include <gtest/gtest.h>
#include <lockstep/diagnose/detector.h>

#include <algorithm>
#include <ctime>
#include <limits>

#include "../support/little_memory.h"
#include "expect.h"
#include "scale_job.h"

namespace lockstep::simulated {
namespace {

template <Fault fault>
trace::Trace job_of(int ranks) {
  return ScaleJob{.ranks = ranks, .steps = 4, .fault = fault, .batch = 4, .layers = 1}.run();
}

// One rank makes one call less than the others.
trace::Trace one_call_less(int ranks) {
  auto trace = job_of<Fault::none>(ranks);
  for (auto& rank : trace.ranks) {
    auto sequence = static_cast<std::int64_t>(rank.all<trace::Collective>().size());
    if (rank.participant.rank != kOddRank)
      record(rank, 4, call(++sequence, "0", "allreduce", -1, 1));
    for (int n = 0; n < 2; ++n) record(rank, 4, call(++sequence, "0", "broadcast", 0, 9));
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
    testing::Values(
        Case{"healthy", job_of<Fault::none>, {}},
        Case{"one_rate_differs", job_of<Fault::learning_rate>, {"update-differs"}},
        Case{"all_replicas_differ", job_of<Fault::unequal_start>, {"no-initial-broadcast"}},
        Case{"nobody_reduces", job_of<Fault::no_reduction>, {"forward-bypasses-wrapper"}},
        Case{"one_call_less", one_call_less, {"rank-conditional-collective"}},
        Case{"one_rank_dies", job_of<Fault::death>, {"peer-dies"}}),
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

// A quadratic detector takes 64 times as long. A linear one may take twice 8 times, once the trace outgrows the
// caches, and sorting adds a logarithm: 40 times is the bound. A time below kMoment passes: it is too short to
// compare. A detector that exceeds its bound is measured again, and the least time counts.
TEST_P(Scale, EightTimesTheRanksTakeNowhereNearSixtyFourTimesAsLong) {
  if (test::kSanitized) GTEST_SKIP() << "what a sanitizer does takes most of the time";
  constexpr double kMoment = 0.0075;  // s
  const auto few = GetParam().make(200), many = GetParam().make(1600);
  for (const auto& detector : diagnose::detectors()) {
    const double of_few = cpu_seconds(detector, few, 3);
    const double bound = std::max(kMoment, 40 * of_few);
    double of_many = cpu_seconds(detector, many, 1);
    if (of_many >= bound) of_many = cpu_seconds(detector, many, 8);
    EXPECT_LT(of_many, bound) << detector.slug << ", of 200 ranks: " << of_few << " s";
  }
}

}  // namespace
}  // namespace lockstep::simulated
