// Ranks that are given each other's samples.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::Severity;
using diagnose::State;

constexpr int kFedSteps = 8;
constexpr std::int64_t kFedBatch = 16, kFedSamples = kFedSteps * kFedBatch;

class FedRows : public testing::TestWithParam<int> {
 protected:
  // A job whose rank `rank` is given sample `sample(rank, n)` as its n-th.
  trace::Trace fed(const std::function<std::int64_t(std::int64_t rank, std::int64_t n)>& sample,
                   int steps = kFedSteps) const {
    auto trace = without<trace::PassBegin>(Job(GetParam()).run());
    for (auto& rank : trace.ranks)
      for (int step = 0; step < steps; ++step) {
        Ids rows;
        for (std::int64_t i = 0; i < kFedBatch; ++i)
          rows.push_back(sample(rank.participant.rank, step * kFedBatch + i));
        record(rank, step, trace::Rows{rows});
      }
    return trace;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, FedRows, kTwoAndThree, testing::PrintToStringParamName());
class ManyRanksFedRows : public FedRows {};
INSTANTIATE_TEST_SUITE_P(Ranks, ManyRanksFedRows, testing::Values(16));

std::int64_t own_share(std::int64_t rank, std::int64_t n) {
  return rank * kFedSamples + n;
}

TEST_P(FedRows, OfSharesAreRight) {
  expect_nothing(fed(own_share));
  EXPECT_EQ(state(fed(own_share), "shares-of-data-overlap"), State::clean);
}

TEST_P(FedRows, OfAnotherShareInTheNextPassAreRight) {
  expect_nothing(fed([](std::int64_t rank, std::int64_t n) {
    return own_share((rank + n / (kFedSamples / 2)) % GetParam(), n % (kFedSamples / 2));
  }));
}

TEST_P(FedRows, ThatAllRanksAreGivenAreNamed) {
  const auto all = fed([](std::int64_t, std::int64_t n) { return n; });
  expect_only(all, "shares-of-data-overlap", all_ranks(GetParam()), 0);
  EXPECT_NE(evidence(all).find("128 of 128 samples"), std::string::npos) << evidence(all);
}

// As where two workers of every rank read the whole stream: nearly each step repeats a sample.
TEST_P(ManyRanksFedRows, ThatAllAreGivenTwiceInARowAreNamed) {
  const auto twice = fed([](std::int64_t, std::int64_t n) {
    return (n / kFedBatch + 1) / 2 * kFedBatch + n % kFedBatch;
  });
  expect_only(twice, "shares-of-data-overlap", all_ranks(GetParam()), 0);
}

// A GAN's generator is the recorded model and is given noise; its critic is given some of what that makes twice.
TEST_P(FedRows, OfAnotherModuleAreNamedToo) {
  const auto gan = [&](const std::function<std::int64_t(std::int64_t, std::int64_t)>& real) {
    auto trace = fed([](std::int64_t rank, std::int64_t n) { return -1 - own_share(rank, n); });
    for (auto& rank : trace.ranks)
      for (int step = 0; step < kFedSteps; ++step) {
        Ids critic;
        for (std::int64_t i = 0; i < kFedBatch; ++i)
          critic.push_back(real(rank.participant.rank, step * kFedBatch + i));
        Ids generated;
        for (std::int64_t i = 0; i < kFedBatch; ++i)
          generated.push_back(100'000 + own_share(rank.participant.rank, step * kFedBatch + i));
        for (const auto& ids : {critic, generated, generated})
          record(rank, step, trace::OtherRows{1, ids});
      }
    return trace;
  };
  expect_nothing(gan(own_share));
  expect_only(gan([](std::int64_t, std::int64_t n) { return n; }), "shares-of-data-overlap",
              all_ranks(GetParam()), 0, Severity::advice);
}

TEST_P(FedRows, OfAllDataInAnOrderOfEachRanksOwnAreNamed) {
  expect_only(fed([](std::int64_t rank, std::int64_t n) {
                return (n * (2 * rank + 3) + 5 * rank) % (2 * kFedSamples);
              }),
              "shares-of-data-overlap", all_ranks(GetParam()), 0, Severity::advice);
}

TEST_P(FedRows, ThatOverlapFromThePassOnThatARankBeginsAnewAreNamed) {
  const auto late = [](std::int64_t rank, std::int64_t n) {
    return n < kFedSamples ? own_share(rank, n) : own_share(0, n % kFedSamples);
  };
  expect_only(fed(late, 2 * kFedSteps), "shares-of-data-overlap", all_ranks(GetParam()), kFedSteps);
}

TEST_P(FedRows, ThatOverlapInTheFirstOfManyPassesAreNamed) {
  const auto at_first = [](std::int64_t rank, std::int64_t n) {
    return own_share(n < kFedSamples ? 0 : rank, n % kFedSamples);
  };
  expect_only(fed(at_first, 64 * kFedSteps), "shares-of-data-overlap", all_ranks(GetParam()), 0);
}

TEST_P(FedRows, OfAFewThatPadASharesEndAreRight) {
  expect_nothing(fed([](std::int64_t rank, std::int64_t n) {
    return n < kFedSamples - 4 ? own_share(rank, n) : own_share(0, n - kFedSamples + 4);
  }));
}

// In each of several passes a few, such as those at the border of two shares.
TEST_P(FedRows, ThatMeetInAFewOfEachPassAreNamed) {
  const auto border = [](std::int64_t rank, std::int64_t n) {
    const auto place = n % kFedSamples;
    return own_share(place % 16 == 3 ? 0 : rank, place);  // 8 of 128
  };
  const auto passes = [&](int count) { return fed(border, count * kFedSteps); };
  expect_nothing(passes(1));
  expect_only(passes(4), "shares-of-data-overlap", all_ranks(GetParam()), 0, Severity::advice);
}

// As ranks do that draw with replacement: some of their own come twice, too.
TEST_P(FedRows, DrawnByChanceAreRight) {
  for (const int samples : {1, 2, 4, 16}) {
    std::mt19937_64 dice;
    expect_nothing(fed(
        [&](std::int64_t, std::int64_t) {
          return static_cast<std::int64_t>(dice() % (samples * kFedSamples));
        },
        16 * kFedSteps));
  }
}

TEST_P(FedRows, OfOneBatchAgainAndAgainAreRight) {
  expect_nothing(fed([](std::int64_t, std::int64_t n) { return n % kFedBatch; }));
}

TEST_P(FedRows, OfRanksThatTrainOnTheirOwnAreNotJudged) {
  const auto all = fed([](std::int64_t, std::int64_t n) { return n; });
  const auto apart = without<trace::Engine>(without<trace::LocalGradients>(all));
  EXPECT_EQ(state(apart, "shares-of-data-overlap"), State::not_triggered);
}

// Local steps: equal at the start, and the parameters are reduced now and then.
TEST_P(FedRows, OfRanksThatAverageTheirParametersAreJudged) {
  auto trace = without<trace::Engine>(
      without<trace::LocalGradients>(fed([](std::int64_t, std::int64_t n) { return n; })));
  const auto elements = [](const trace::Model& model) {
    std::int64_t all = 0;
    for (const auto& shape : model.shapes)
      all += std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    return all;
  };
  for (auto& rank : trace.ranks)
    record(rank, 3, call(1, "0", "allreduce", -1, elements(rank.all<trace::Model>()[0].event[0])));
  EXPECT_EQ(state(trace, "shares-of-data-overlap"), State::found);
}

// Nothing is known of the samples but what comes of them.
TEST_P(FedRows, GradientsThatAreTheSameOnAllRanksAreNamed) {
  auto same = Job(GetParam()).run(), once = same;
  for (auto* trace : {&same, &once})
    for (auto& rank : trace->ranks)
      for (auto& [step, gradients] : each<trace::LocalGradients>(rank))
        if (trace == &same || step == 1)
          gradients.values = summarize(draw_values(5, trace == &same ? step : 0, 0));
  EXPECT_EQ(state(same, "same-gradients"), State::found);
  EXPECT_EQ(state(once, "same-gradients"), State::clean);
}

}  // namespace
}  // namespace lockstep::simulated
