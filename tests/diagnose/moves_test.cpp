// Parameters that move by another rule than their gradients and the rate say, on replicas that stay equal.
#include <gtest/gtest.h>

#include <functional>

#include "expect.h"
#include "job.h"
#include "tensors.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

constexpr double kRate = 0.1;

// What the owner of a tensor makes of it by its gradient.
using Rule = std::function<void(std::int64_t step, std::size_t tensor, Values& parameter,
                                const Values& gradient)>;

void sgd(Values& parameter, const Values& gradient) {
  for (std::size_t i = 0; i < parameter.size(); ++i) parameter[i] -= kRate * gradient[i];
}

struct How {
  bool reduces = true;
  bool broadcasts = true;  // tensor t from rank t, else every rank updates all by itself
  int updates = 4;
};

// Two ranks and two tensors. Gradients that are not reduced are the owner's.
trace::Trace train(const How& how, const Rule& rule) {
  auto trace = empty_trace(2);
  auto parameters = draw_values(7, 0, 0);
  for (auto& rank : trace.ranks) {
    record(rank, -1, trace::Model{{"weight", "bias"}, {{2, 3}, {3}}, {"float", "float"}});
    record(rank, -1, trace::Parameters{summarize(parameters)});
  }
  std::int64_t calls = 0;
  for (std::int64_t step = 0; step < how.updates; ++step) {
    const std::vector<Tensors> own{draw_values(1, 0, 100 * step), draw_values(1, 1, 100 * step)};
    auto used = own;
    if (how.reduces)
      for (std::size_t t = 0; t < 2; ++t)
        for (std::size_t i = 0; i < own[0][t].size(); ++i)
          used[0][t][i] = used[1][t][i] = (own[0][t][i] + own[1][t][i]) / 2;
    for (std::size_t t = 0; t < 2; ++t) rule(step, t, parameters[t], used[t][t]);
    for (std::size_t r = 0; r < 2; ++r) {
      auto& rank = trace.ranks[r];
      std::int64_t sequence = calls;
      record(rank, step, trace::LocalGradients{4, summarize(own[r])});
      record(rank, step, call(++sequence, "0", "allreduce", -1, 9));
      record(rank, step, trace::ReducedGradients{summarize(used[r])});
      if (how.broadcasts) record(rank, step, call(++sequence, "0", "broadcast", 0, 6));
      if (how.broadcasts) record(rank, step, call(++sequence, "0", "broadcast", 1, 3));
      record(rank, step, trace::Update{{kRate}});
      record(rank, step, trace::Parameters{summarize(parameters)});
    }
    calls += how.broadcasts ? 3 : 1;
  }
  return trace;
}

void expect_advice(const trace::Trace& trace, const std::string& slug,
                   const std::vector<int>& ranks, std::int64_t step) {
  const auto findings = diagnose::diagnose(trace).findings;
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].pitfall, slug);
  EXPECT_EQ(findings[0].severity, diagnose::Severity::advice);
  EXPECT_EQ(findings[0].ranks, ranks);
  EXPECT_EQ(findings[0].step, step);
}

Rule times_in_step(std::int64_t when, std::size_t which, int times) {
  return [=](std::int64_t step, std::size_t tensor, Values& parameter, const Values& gradient) {
    const int updates = step == when && tensor == which ? times : 1;
    for (int i = 0; i < updates; ++i) sgd(parameter, gradient);
  };
}

TEST(Moves, ByTheRateAndTheGradientAreRight) {
  expect_nothing(train({}, times_in_step(0, 0, 1)));
  expect_nothing(train({.broadcasts = false}, times_in_step(0, 0, 1)));
}

TEST(Moves, LeftOutOrMadeTwiceInOneUpdateByTheOwnerAreNamed) {
  expect_advice(train({}, times_in_step(2, 1, 0)), "update-differs", {1}, 2);
  expect_advice(train({}, times_in_step(2, 1, 2)), "update-differs", {1}, 2);
  expect_advice(train({}, times_in_step(1, 0, 0)), "update-differs", {0}, 1);
}

TEST(Moves, WithoutOwnersAreOfAllRanks) {
  expect_advice(train({.broadcasts = false}, times_in_step(2, 1, 2)), "update-differs", {0, 1}, 2);
  expect_nothing(
      train({.broadcasts = false}, times_in_step(2, 1, 0)));  // as two optimizers in turn
}

Rule with_decay_of(std::size_t which) {
  return [which](std::int64_t, std::size_t tensor, Values& parameter, const Values& gradient) {
    const auto before = parameter;
    sgd(parameter, gradient);
    if (tensor != which) return;
    for (std::size_t i = 0; i < parameter.size(); ++i) parameter[i] -= kRate * 0.1 * before[i];
  };
}

// The decay of a bias is never that of a matrix: which tensors, and whose they are, is one thing here.
TEST(Moves, WithADecayOfOneKindOfTensorsAreAChoice) {
  expect_nothing(train({}, with_decay_of(0)));
  expect_nothing(train({}, with_decay_of(1)));
}

TEST(Moves, WithASmallDecayAreRight) {
  for (const double decay : {1e-4, 5e-4, 1e-3, 1e-2})
    for (const bool broadcasts : {false, true})
      expect_nothing(
          train({.broadcasts = broadcasts, .updates = 6},
                [decay](std::int64_t, std::size_t, Values& parameter, const Values& gradient) {
                  const auto before = parameter;
                  sgd(parameter, gradient);
                  for (std::size_t i = 0; i < parameter.size(); ++i)
                    parameter[i] -= kRate * decay * before[i];
                }));
}

// Two optimizers in turn.
TEST(Moves, OfAPartThatIsLeftOutNowAndThenAreRight) {
  for (const int every : {2, 4})
    expect_nothing(train(
        {.broadcasts = false, .updates = 8},
        [every](std::int64_t step, std::size_t tensor, Values& parameter, const Values& gradient) {
          if ((step % every == 0) == (tensor == 0)) sgd(parameter, gradient);
        }));
}

TEST(Moves, WithADecayOfTheOwnersAreNamedWhereOthersHaveTensorsOfTheKind) {
  auto trace = train({}, with_decay_of(1));
  for (auto [step, model] : each<trace::Model>(trace)) model.shapes = {{6}, {3}};
  expect_advice(trace, "update-differs", {1}, 0);
}

TEST(Moves, WithADecayOfSomeTensorsOfReplicasAreAChoice) {
  expect_nothing(train({.broadcasts = false}, with_decay_of(0)));
}

TEST(Moves, ByMomentumAreRightOnAllTensors) {
  Tensors velocity{Values(6, 0.0), Values(3, 0.0)};
  expect_nothing(
      train({.updates = 6}, [velocity](std::int64_t, std::size_t tensor, Values& parameter,
                                       const Values& gradient) mutable {
        for (std::size_t i = 0; i < gradient.size(); ++i)
          velocity[tensor][i] = 0.9 * velocity[tensor][i] + gradient[i];
        sgd(parameter, velocity[tensor]);
      }));
}

TEST(Moves, ByTheOwnersGradientThoughAllAreReducedLaterAreNoMean) {
  expect_advice(train({.reduces = false}, times_in_step(0, 0, 1)), "gradient-not-the-mean", {0, 1},
                0);
}

// Each rank updates with its own gradient, and all take the mean of the parameters: the update is by the mean.
TEST(Moves, ByTheMeanOfWhatTheOwnersHaveAreRight) {
  Job job(2);
  job.reduce = false;
  job.average_parameters = true;
  job.has_engine = false;
  EXPECT_EQ(state(job.run(), "gradient-not-the-mean"), State::clean);
}

}  // namespace
}  // namespace lockstep::simulated
