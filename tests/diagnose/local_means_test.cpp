// Ranks whose unequal batches each count by their own mean.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

const char* const kLocalMeans = "mean-of-local-means";

class LocalMeans : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LocalMeans, kTwoToFour, testing::PrintToStringParamName());

// One step a time; rank r's batch has 8 / (r + 1) samples, and each loss is `share` times their mean.
trace::Trace weighed(int world_size, bool unequal, const std::function<double(double n)>& share,
                     bool divides_later = false) {
  auto trace = empty_trace(world_size);
  for (std::int64_t step = 0; step < 3; ++step) {
    std::vector<double> counts;
    double all = 0;
    for (int r = 0; r < world_size; ++r) {
      counts.push_back(unequal ? std::floor(8.0 / (r + 1)) : 8.0);
      all += counts.back();
    }
    std::vector<std::vector<Values>> local;
    auto reduced = draw_values(0, 0, 0);
    for (auto& tensor : reduced) tensor.assign(tensor.size(), 0.0);
    for (int r = 0; r < world_size; ++r) {
      auto gradient = draw_values(1, r, step);
      for (std::size_t t = 0; t < gradient.size(); ++t)
        for (std::size_t i = 0; i < gradient[t].size(); ++i) {
          gradient[t][i] *= share(counts[r]);
          reduced[t][i] += gradient[t][i] / world_size * (divides_later ? world_size / all : 1);
        }
      local.push_back(gradient);
    }
    for (int r = 0; r < world_size; ++r) {
      auto& rank = trace.ranks[r];
      if (step == 0) record(rank, -1, trace::Intent{.loss_reduction = "mean"});
      const auto n = static_cast<std::int64_t>(counts[r]);
      record(rank, step, trace::Samples{"train", Ids(static_cast<std::size_t>(n), r)});
      record(rank, step, trace::LossDivisors{{counts[r] / share(counts[r])}});
      record(rank, step, trace::Loss{2 * share(counts[r]), 2.0 * static_cast<double>(n), n});
      record(rank, step, trace::LocalGradients{n, summarize(local[r])});
      record(rank, step, trace::ReducedGradients{summarize(reduced)});
      record(rank, step, trace::Update{{0.1}});
    }
  }
  return trace;
}

TEST_P(LocalMeans, MeansThatWeighTheSameAreNamed) {
  expect_only(weighed(GetParam(), true, [](double) { return 1.0; }), kLocalMeans,
              all_ranks(GetParam()), 0);
}

// Each by the part of all samples that it is the mean of.
trace::Trace by_part(int world_size) {
  double all = 0;
  for (int r = 0; r < world_size; ++r) all += std::floor(8.0 / (r + 1));
  return weighed(world_size, true, [&](double n) { return n * world_size / all; });
}

TEST_P(LocalMeans, MeansThatAreWeighedAreRight) {
  const auto trace = by_part(GetParam());
  expect_nothing(trace);
  EXPECT_EQ(state(trace, kLocalMeans), State::clean);
}

TEST_P(LocalMeans, SumsThatAreDividedLaterAreRight) {
  const auto trace = weighed(
      GetParam(), true, [](double n) { return n; }, true);
  expect_nothing(trace);
  EXPECT_EQ(state(trace, kLocalMeans), State::clean);
}

TEST_P(LocalMeans, MeansOfEqualBatchesCannotShow) {
  const auto trace = weighed(GetParam(), false, [](double) { return 1.0; });
  expect_nothing(trace);
  EXPECT_EQ(state(trace, kLocalMeans), State::not_applicable);
}

// No word: by what the losses were divided by.
trace::Trace not_declared(trace::Trace trace) {
  return without<trace::Loss>(without<trace::Intent>(trace));
}

TEST_P(LocalMeans, MeansThatWeighTheSameAreAdviceWhereNobodySaysWhatIsMeant) {
  const auto wrong = not_declared(weighed(GetParam(), true, [](double) { return 1.0; }));
  expect_only(wrong, kLocalMeans, all_ranks(GetParam()), 0, diagnose::Severity::advice);
  EXPECT_NE(evidence(wrong).find("in 3 recorded steps"), std::string::npos) << evidence(wrong);
}

// A program that sums the gradients divides by W itself; a scaler multiplies.
TEST_P(LocalMeans, CountsAreKnownBehindWorldSizeAndScale) {
  auto wrong = not_declared(weighed(GetParam(), true, [](double) { return 1.0; }));
  for (auto [step, divisors] : each<trace::LossDivisors>(wrong)) divisors.values[0] /= GetParam();
  EXPECT_EQ(state(wrong, kLocalMeans), State::found);
  for (auto [step, divisors] : each<trace::LossDivisors>(wrong)) divisors.values[0] /= 65536;
  EXPECT_EQ(state(wrong, kLocalMeans), State::clean);
  for (auto& rank : wrong.ranks)
    for (std::int64_t step = 0; step < 3; ++step)
      record(rank, step, trace::ScaledStep{65536, false, true});
  EXPECT_EQ(state(wrong, kLocalMeans), State::found);
}

TEST_P(LocalMeans, OtherNumbersThanCountsAreWeights) {
  auto trace = not_declared(weighed(GetParam(), true, [](double) { return 1.0; }));
  for (auto [step, divisors] : each<trace::LossDivisors>(trace)) divisors.values[0] *= 0.37;
  EXPECT_EQ(state(trace, kLocalMeans), State::clean);
}

// Over equal batches a rank's loss that counts twice is weighted, and that is another finding.
TEST_P(LocalMeans, ALossThatAlwaysCountsTwiceIsWeighted) {
  auto trace = not_declared(weighed(GetParam(), false, [](double) { return 1.0; }));
  for (auto [step, divisors] : each<trace::LossDivisors>(trace)) divisors.values[0] = 8;
  for (auto& event : trace.ranks[1].events)
    if (const auto* divisors = event.as<trace::LossDivisors>())
      event.payload = trace::LossDivisors{{divisors->values[0] / 2}};
  expect_only(trace, "loss-weight-differs", odd_one_out(GetParam(), 1), 0,
              diagnose::Severity::advice);
  EXPECT_EQ(state(trace, kLocalMeans), State::clean);
}

TEST_P(LocalMeans, WeighedOrSummedNotDeclaredIsRight) {
  for (const auto& trace : {by_part(GetParam()),
                            weighed(
                                GetParam(), true, [](double n) { return n; }, true),
                            weighed(GetParam(), false, [](double) { return 1.0; })})
    EXPECT_EQ(state(not_declared(trace), kLocalMeans), State::clean);
}

// Each rank's gradient and divisor, as many times as it has samples: it sums, and counts later.
trace::Trace as_sums(trace::Trace trace) {
  for (auto& rank : trace.ranks) {
    std::vector<double> counts;
    for (const auto& at : rank.all<trace::LocalGradients>())
      counts.push_back(static_cast<double>(at.event->samples));
    for (auto [step, gradients] : each<trace::LocalGradients>(rank))
      for (auto& value : gradients.values) {
        value.norm *= counts[static_cast<std::size_t>(step)];
        for (auto& projection : value.sketch) projection *= counts[static_cast<std::size_t>(step)];
      }
    for (auto [step, divisors] : each<trace::LossDivisors>(rank))
      divisors.values[0] /= counts[static_cast<std::size_t>(step)];
  }
  return trace;
}

TEST_P(LocalMeans, SumsThatEachRankDividesByItsOwnCountAreAdvice) {
  const auto wrong = as_sums(not_declared(weighed(GetParam(), true, [](double) { return 1.0; })));
  EXPECT_EQ(state(wrong, kLocalMeans), State::found);
  EXPECT_NE(evidence(wrong).find(", here by " + std::to_string(8 / GetParam()) + " to 8"),
            std::string::npos)
      << evidence(wrong);
  EXPECT_EQ(state(as_sums(not_declared(by_part(GetParam()))), kLocalMeans), State::clean);
}

TEST_P(LocalMeans, GradientsThatAreWeighedLaterAreRight) {
  auto trace = not_declared(weighed(
      GetParam(), true, [](double) { return 1.0; }, true));
  for (auto [step, gradients] : each<trace::ReducedGradients>(trace))
    gradients.values = summarize(draw_values(9, step, 0));
  EXPECT_EQ(state(trace, kLocalMeans), State::clean);
}

TEST_P(LocalMeans, MeansNeedLossesGradientsAndAWord) {
  const auto wrong = weighed(GetParam(), true, [](double) { return 1.0; });
  EXPECT_EQ(state(without<trace::LossDivisors>(not_declared(wrong)), kLocalMeans),
            State::not_triggered);
  EXPECT_NE(state(without<trace::Loss>(wrong), kLocalMeans), State::found);
  EXPECT_EQ(state(without<trace::LocalGradients>(wrong), kLocalMeans), State::not_triggered);
}

TEST(LocalMeansOnOneRank, CannotBe) {
  EXPECT_EQ(state(weighed(1, true, [](double) { return 1.0; }), kLocalMeans),
            State::not_applicable);
}

}  // namespace
}  // namespace lockstep::simulated
