// Ranks that are set up differently, or are fed differently.
#include <gtest/gtest.h>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::Severity;
using diagnose::State;
using trace::SettingsOf;

class Setup : public testing::TestWithParam<int> {
 protected:
  // A job whose every rank tells its settings.
  trace::Trace configured(SettingsOf of, const std::string& key,
                          const std::function<std::string(int rank)>& value) const {
    auto trace = Job(GetParam()).run();
    for (auto& rank : trace.ranks)
      record(rank, 0, trace::Settings{of, {"type", key}, {"same", value(rank.participant.rank)}});
    return trace;
  }

  // A job whose every rank tells what the first steps' forwards were given.
  trace::Trace fed(const std::function<trace::Input(int rank, int step)>& input,
                   int steps = 4) const {
    auto trace = Job(GetParam()).run();
    for (auto& rank : trace.ranks)
      for (int step = 0; step < steps; ++step)
        record(rank, step, input(rank.participant.rank, step));
    return trace;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Setup, kTwoAndThree, testing::PrintToStringParamName());

trace::Input images(int step, double mean = 0, double deviation = 1) {
  return {.index = 0,
          .shape = {16, 784},
          .dtype = "float32",
          .mean = mean + 0.05 * step,
          .deviation = deviation * (1 + 0.02 * step),
          .least = -1,
          .greatest = 3};
}

TEST_P(Setup, OfOneDropoutIsNamedWithKeyRanksAndValues) {
  const auto trace = configured(SettingsOf::model, "dropout",
                                [](int rank) { return rank == 1 ? "p=0.5" : "p=0.1"; });
  expect_only(trace, "configuration-differs", odd_one_out(GetParam(), 1), 0);
  EXPECT_NE(evidence(trace).find("dropout is p=0.1 on rank"), std::string::npos) << evidence(trace);
  EXPECT_NE(evidence(trace).find("p=0.5 on rank 1"), std::string::npos) << evidence(trace);
}

TEST_P(Setup, OfTheEngineIsNamedAndWhatMayBeAChoiceIsAdvice) {
  for (const auto& [of, severity] : {std::pair{SettingsOf::engine, Severity::violation},
                                     {SettingsOf::loss, Severity::advice},
                                     {SettingsOf::loader, Severity::advice},
                                     {SettingsOf::program, Severity::advice},
                                     {SettingsOf::settings, Severity::advice}}) {
    const auto trace = configured(of, "key", [](int rank) { return rank == 1 ? "8" : "16"; });
    expect_only(trace, "configuration-differs", odd_one_out(GetParam(), 1), 0, severity);
    EXPECT_NE(evidence(trace).find("key is 16 on rank"), std::string::npos) << evidence(trace);
    expect_nothing(configured(of, "key", [](int) { return "16"; }));
  }
}

TEST_P(Setup, NumbersOfTheProgramThatDifferAreAdvice) {
  const auto held = [this](const std::string& mine, const std::string& others) {
    return configured(SettingsOf::constants, "weight in main()",
                      [=](int rank) { return rank == 1 ? mine : others; });
  };
  const auto trace = held("0.1", "0.7");
  expect_only(trace, "configuration-differs", odd_one_out(GetParam(), 1), 0, Severity::advice);
  EXPECT_NE(evidence(trace).find("weight in main() is 0.7 on rank"), std::string::npos);
  expect_only(held("1", "0.5"), "configuration-differs", odd_one_out(GetParam(), 1), 0,
              Severity::advice);
  expect_only(held("row 3", "row 4"), "configuration-differs", odd_one_out(GetParam(), 1), 0,
              Severity::advice);
}

TEST_P(Setup, NumbersOfTheProgramThatAreWholeOrRoundedOtherwiseAreNoFinding) {
  using Pair = std::pair<std::string, std::string>;
  for (const auto& both :
       {Pair{"601", "600"}, {"-1e3", "0"}, {"0.70000001", "0.69999998"}, {"0.7", "0.7"}})
    expect_nothing(configured(SettingsOf::constants, "number",
                              [&](int rank) { return rank == 1 ? both.first : both.second; }));
}

// A seed, an offset, a rank's number; of two ranks any two numbers are an offset apart.
TEST_P(Setup, SettingsThatFollowTheRanksAreNoFinding) {
  const auto settings = [this](const std::function<int(int)>& of_rank) {
    return configured(SettingsOf::settings, "args.key in main()",
                      [=](int rank) { return std::to_string(of_rank(rank)); });
  };
  expect_nothing(settings([](int rank) { return rank; }));
  expect_nothing(settings([](int rank) { return 7 + 1000 * rank; }));
  expect_nothing(settings([](int rank) { return 500 * rank; }));
  expect_nothing(settings([](int rank) { return 601 - rank; }));
  expect_only(settings([](int rank) { return rank == 0 ? 4 : 2; }), "configuration-differs",
              odd_one_out(GetParam(), 0), 0, Severity::advice);
}

TEST_P(Setup, OfEachRanksOnlyLoaderIsComparedWhateverItsSize) {
  const auto loading = [&](int loaders) {
    auto trace = Job(GetParam()).run();
    for (auto& rank : trace.ranks)
      for (int loader = 0; loader < loaders; ++loader) {
        const auto of =
            " of the loader of " + std::to_string(300 + 10 * loader + rank.participant.rank);
        record(rank, 0,
               trace::Settings{SettingsOf::loader,
                               {"batch_size" + of + " samples", "drop_last" + of + " samples"},
                               {rank.participant.rank == 1 ? "8" : "16", "False"}});
      }
    return trace;
  };
  expect_only(loading(1), "configuration-differs", odd_one_out(GetParam(), 1), 0, Severity::advice);
  EXPECT_NE(evidence(loading(1)).find("batch_size of the loader is 16"), std::string::npos);
  expect_nothing(loading(2));
}

TEST_P(Setup, OfTheOptimizerAccountsForUpdatesThatDiffer) {
  auto trace = configured(SettingsOf::optimizer, "group 0.weight_decay",
                          [](int rank) { return rank == 1 ? "0.1" : "0"; });
  for (auto [step, parameters] : each<trace::Parameters>(trace.ranks[1]))
    if (step >= 0) parameters.values[0] = summarize(Values{1, 2, 3, 4, 5, 6});
  expect_only(trace, "optimizer-differs", odd_one_out(GetParam(), 1), 0);
}

// As long as the ranks stay equal, one of them may clip for all.
TEST_P(Setup, OfClippingDiffersWhereParametersEndApart) {
  const auto clipped = [this](bool all) {
    auto trace = configured(SettingsOf::optimizer, "group 0.weight_decay", [](int) { return "0"; });
    for (auto& rank : trace.ranks)
      for (std::int64_t step = 0; step < 3; ++step)
        if (all || rank.participant.rank != 1) record(rank, step, trace::Clip{.max_norm = 0.5});
    return trace;
  };
  const auto apart = [](trace::Trace trace) {
    for (auto [step, parameters] : each<trace::Parameters>(trace.ranks[1]))
      if (step >= 0) parameters.values[0] = summarize(Values{1, 2, 3, 4, 5, 6});
    return trace;
  };
  const auto trace = apart(clipped(false));
  expect_only(trace, "optimizer-differs", odd_one_out(GetParam(), 1), 0);
  EXPECT_NE(evidence(trace).find("clipped to is 0.5 on rank"), std::string::npos);
  EXPECT_NE(evidence(trace).find("none on rank 1"), std::string::npos);
  EXPECT_EQ(state(apart(clipped(true)), "optimizer-differs"), State::clean);
  EXPECT_EQ(state(clipped(false), "optimizer-differs"), State::clean);
  auto to_others = clipped(true);
  for (auto [step, clip] : each<trace::Clip>(to_others.ranks[1])) clip.max_norm = 5;
  const auto severity = [](const trace::Trace& of) {
    for (const auto& finding : diagnose::diagnose(of).findings)
      if (finding.pitfall == "optimizer-differs") return std::optional(finding.severity);
    return std::optional<Severity>();
  };
  EXPECT_EQ(severity(to_others), Severity::advice);
  for (auto [step, clip] : each<trace::Clip>(to_others.ranks[0])) clip.max_norm = INFINITY;
  EXPECT_EQ(severity(to_others), std::nullopt) << "it measures";
  for (auto [step, clip] : each<trace::Clip>(to_others.ranks[0])) clip.max_norm = 0.5;
  EXPECT_EQ(severity(apart(to_others)), Severity::violation);
}

TEST_P(Setup, OfADropoutAccountsForNoDivergence) {
  auto trace = configured(SettingsOf::model, "dropout",
                          [](int rank) { return rank == 1 ? "p=0.5" : "p=0.1"; });
  for (auto [step, parameters] : each<trace::Parameters>(trace.ranks[1]))
    if (step >= 0) parameters.values[0] = summarize(Values{1, 2, 3, 4, 5, 6});
  EXPECT_EQ(diagnose::diagnose(trace).findings.size(), 2u);
}

TEST_P(Setup, ThatIsEqualOrThatOneRankLacksIsNoFinding) {
  expect_nothing(configured(SettingsOf::model, "dropout", [](int) { return "p=0.1"; }));
  auto trace = Job(GetParam()).run();
  record(trace.ranks[1], 0,
         trace::Settings{SettingsOf::optimizer, {"group 1.weight_decay"}, {"0.1"}});
  expect_nothing(trace);
}

TEST_P(Setup, OfRanksThatTrainModelsOfTheirOwnIsLeftAlone) {
  auto trace = configured(SettingsOf::model, "dropout",
                          [](int rank) { return rank == 1 ? "p=0.5" : "p=0.1"; });
  trace = without<trace::Engine>(without<trace::LocalGradients>(std::move(trace)));
  EXPECT_EQ(state(trace, "configuration-differs"), State::not_triggered);
}

TEST_P(Setup, InputsOfAnotherDtypeOrDimensionAreNamed) {
  expect_only(fed([](int rank, int step) {
                auto input = images(step);
                if (rank == 1) input.dtype = "float64";
                return input;
              }),
              "inputs-differ", odd_one_out(GetParam(), 1), 0);
  const auto trace = fed([](int rank, int step) {
    auto input = images(step);
    if (rank == 1) input.shape = {16, 28, 28};
    return input;
  });
  expect_only(trace, "inputs-differ", odd_one_out(GetParam(), 1), 0);
  EXPECT_NE(evidence(trace).find("dimensions of input 0 is 2 on rank"), std::string::npos);
}

// A rank may have buckets of its own, or batches along another dimension.
TEST_P(Setup, InputsOfAnotherSizeOnEveryStepAreAdvice) {
  const auto trace = fed([](int rank, int step) {
    auto input = images(step);
    if (rank == 1) input.shape = {16, 1024};
    return input;
  });
  expect_only(trace, "inputs-differ", odd_one_out(GetParam(), 1), 0, Severity::advice);
  EXPECT_NE(evidence(trace).find("the shape of input 0 is [N, 784] on rank"), std::string::npos);
}

TEST_P(Setup, InputsOfOtherBatchesOrLengthsAreNoFinding) {
  expect_nothing(fed([](int rank, int step) {
    auto input = images(step);
    input.shape[0] = 16 + rank;
    return input;
  }));
  // Sentences, padded to the longest one of the batch.
  expect_nothing(fed([](int rank, int step) {
    auto input = images(step);
    input.shape[1] = 10 + (7 * rank + 5 * step) % 4;
    return input;
  }));
}

TEST_P(Setup, InputsOfMuchSmallerBatchesOnOneRankAreAdvice) {
  const auto job = [&](const std::function<int(int rank, int step)>& samples) {
    return without<trace::Loss>(fed([&](int rank, int step) {
      auto input = images(step);
      input.shape[0] = samples(rank, step);
      return input;
    }));
  };
  const auto unequal = [](int of_rank_1) {
    return [of_rank_1](int rank, int step) {
      return step == 3 ? 3 : rank == 1 ? of_rank_1 : 16;  // the last one is smaller
    };
  };
  expect_only(job(unequal(4)), "inputs-differ", odd_one_out(GetParam(), 1), 0, Severity::advice);
  expect_nothing(job(unequal(14)));
  expect_nothing(job([](int rank, int step) { return 4 + 9 * ((rank + step) % 3); }));

  auto weighed = job(unequal(4));
  record(weighed.ranks[1], 0, trace::Loss{.backward_value = 1, .sum = 4, .count = 4});
  EXPECT_EQ(state(weighed, "inputs-differ"), State::clean);

  auto counted = job(unequal(4));
  for (auto& rank : counted.ranks)
    for (int step = 0; step < 4; ++step) record(rank, step, trace::LossDivisors{{10}});
  EXPECT_EQ(state(counted, "inputs-differ"), State::clean);

  auto in_two_forwards = job(unequal(8));
  std::vector<std::pair<std::int64_t, trace::Input>> again;
  for (auto [step, input] : each<trace::Input>(in_two_forwards.ranks[1]))
    if (step < 3) again.emplace_back(step, input);
  for (const auto& [step, input] : again) record(in_two_forwards.ranks[1], step, input);
  expect_nothing(in_two_forwards);
}

TEST_P(Setup, InputsOnFewStepsAreNoFinding) {
  const auto odd = [](int rank, int step) {
    auto input = images(step, rank == 1 ? 100 : 0);
    if (rank == 1) input.dtype = "float64";
    return input;
  };
  expect_nothing(fed(odd, 2));
}

TEST_P(Setup, InputsThatOneRankDoesNotNormaliseAreAdvice) {
  const auto trace =
      fed([](int rank, int step) { return rank == 1 ? images(step, 73, 90) : images(step); });
  expect_only(trace, "inputs-differ", odd_one_out(GetParam(), 1), 0, Severity::advice);
  EXPECT_NE(evidence(trace).find("standard deviation"), std::string::npos);
  expect_only(fed([](int rank, int step) { return images(step, 0, rank == 1 ? 3 : 1); }),
              "inputs-differ", odd_one_out(GetParam(), 1), 0, Severity::advice);
}

TEST_P(Setup, TargetsAndInputsOfAnotherModuleThatDifferAreAdvice) {
  for (const auto& [index, name] : {std::pair{-1, "the loss's target"},
                                    {-2, "target 2 of the loss"},
                                    {100, "input 0 of module 2"}}) {
    const auto trace = fed([index = index](int rank, int step) {
      auto input = images(step, 0, rank == 1 ? 4.184 : 1);
      input.index = index;
      return input;
    });
    expect_only(trace, "inputs-differ", odd_one_out(GetParam(), 1), 0, Severity::advice);
    EXPECT_NE(evidence(trace).find(name), std::string::npos) << evidence(trace);
  }
}

// As where each sample's partner stands among all ranks' samples.
TEST_P(Setup, TargetsThatArePlacesOfTheRankAreNoFinding) {
  const auto places = [this](double moves) {
    return fed([=](int rank, int step) {
      return trace::Input{.index = -1,
                          .shape = {16},
                          .dtype = "int64",
                          .mean = 7.5 + 16 * rank + moves * step,
                          .deviation = 4.6,
                          .least = 16.0 * rank,
                          .greatest = 16.0 * rank + 15};
    });
  };
  expect_nothing(places(0));
  EXPECT_EQ(state(places(0.01), "inputs-differ"), State::found);
}

TEST_P(Setup, TargetsOfAnotherConstantAreAdvice) {
  const auto real = [this](double of_rank_1) {
    return fed([=](int rank, int) {
      return trace::Input{.index = -1,
                          .shape = {16, 1},
                          .dtype = "float32",
                          .mean = rank == 1 ? of_rank_1 : 1,
                          .deviation = 0,
                          .least = rank == 1 ? of_rank_1 : 1,
                          .greatest = rank == 1 ? of_rank_1 : 1};
    });
  };
  expect_only(real(0.9), "inputs-differ", odd_one_out(GetParam(), 1), 0, Severity::advice);
  expect_nothing(real(1));
}

TEST_P(Setup, InputsThatVaryAsMuchOnOneRankAreNoFinding) {
  expect_nothing(
      fed([](int rank, int step) { return images(step, 0.02 * rank, 1 + 0.01 * rank); }));
  expect_nothing(
      fed([](int rank, int step) { return images(step, rank == 1 && step == 2 ? 5 : 0); }));
  expect_nothing(fed([](int rank, int step) { return images(step, 0.001 * rank, 0); }));
}

TEST_P(Setup, InputsThatAreTheSameOnAllRanksAreNamed) {
  const auto same = [](int, int step) { return images(step); };
  expect_only(fed(same), "same-inputs", all_ranks(GetParam()), 0);
  EXPECT_NE(evidence(fed(same)).find("each of 4 steps"), std::string::npos) << evidence(fed(same));
  // One batch again and again; too few steps; once another one on one rank; ranks that train on their own.
  expect_nothing(fed([](int, int step) { return images(step % 2); }));
  expect_nothing(fed(same, 2));
  expect_nothing(fed([](int rank, int step) { return images(step, step == 3 ? 0.01 * rank : 0); }));
  const auto apart = without<trace::Engine>(without<trace::LocalGradients>(fed(same)));
  EXPECT_EQ(state(apart, "same-inputs"), State::not_triggered);
}

TEST_P(Setup, AnInputThatIsTheSameOnAllRanksBesideOneThatIsNotIsLeftOpen) {
  const auto reason = [&](double by_rank) {
    auto trace = fed([](int rank, int step) { return images(step, 0.01 * rank); });
    for (auto& rank : trace.ranks)
      for (int step = 0; step < 4; ++step) {
        auto times = images(step, by_rank * rank.participant.rank);
        times.index = 1;
        record(rank, step, times);
      }
    const auto line = diagnose::diagnose(trace).ledger.at(
        static_cast<std::size_t>(diagnose::Equation::random_numbers));
    EXPECT_EQ(line.standing, diagnose::Standing::open);
    return line.reason;
  };
  EXPECT_NE(reason(0).find("input 1 of the model is the same on all ranks"), std::string::npos);
  EXPECT_EQ(reason(0.01).find("input 1"), std::string::npos);
}

TEST_P(Setup, InputsThatAreConstantOnOneRankAreAdvice) {
  const auto trace =
      fed([](int rank, int step) { return rank == 1 ? images(0, 0, 0) : images(step); });
  expect_only(trace, "inputs-differ", odd_one_out(GetParam(), 1), 0, Severity::advice);
}

}  // namespace
}  // namespace lockstep::simulated
