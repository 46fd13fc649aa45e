// The scorer, on matrices made by hand.
#include <gtest/gtest.h>
#include <lockstep/matrix/score.h>

#include <cmath>

namespace lockstep::matrix {
namespace {

using State = Answer::State;

const Families kFamilies{{"sum-not-mean", "03"}, {"double-average", "03"}, {"no-sharding", "04"}};

Truth faulty(std::vector<int> ranks = {1}, std::optional<std::int64_t> step = 2) {
  return {"case", "03", "sum-not-mean", std::move(ranks), step, true};
}
Truth healthy() {
  return {.name = "healthy", .family = "03"};
}
Answer said(std::vector<Named> findings) {
  return {State::answered, std::move(findings)};
}
Cell cell(const Truth& truth, const Answer& answer) {
  return judge(truth, answer, kFamilies);
}

TEST(Score, ExactIsSlugRanksAndStep) {
  EXPECT_EQ(cell(faulty(), said({{"sum-not-mean", false, {1}, 2}})), Cell::exact);
  EXPECT_EQ(cell(faulty({2, 1}), said({{"sum-not-mean", false, {1, 2}, 2}})), Cell::exact);
  EXPECT_EQ(cell(faulty(), said({{"sum-not-mean", false, {0}, 2}})), Cell::slug_only);
  EXPECT_EQ(cell(faulty(), said({{"sum-not-mean", false, {1, 2}, 2}})), Cell::slug_only);
  EXPECT_EQ(cell(faulty(), said({{"sum-not-mean", false, {1}, 3}})), Cell::slug_only);
  // What the truth does not say is not asked.
  EXPECT_EQ(cell(faulty({}), said({{"sum-not-mean", false, {0}, 2}})), Cell::exact);
  EXPECT_EQ(cell(faulty({1}, std::nullopt), said({{"sum-not-mean", false, {1}, 9}})), Cell::exact);
  // Advice names it too.
  EXPECT_EQ(cell(faulty(), said({{"sum-not-mean", true, {1}, 2}})), Cell::exact);
  // And so it does beside others.
  EXPECT_EQ(cell(faulty(), said({{"no-sharding", false, {0}, 0}, {"sum-not-mean", false, {1}, 2}})),
            Cell::exact);
}

TEST(Score, OtherNamesAreOfTheFamilyGenericOrWrong) {
  EXPECT_EQ(cell(faulty(), said({{"double-average", false, {1}, 2}})), Cell::family_only);
  EXPECT_EQ(cell(faulty(), said({{"replicas-diverged", false, {1}, 2}})), Cell::family_only);
  EXPECT_EQ(cell(faulty(), said({{"no-sharding", false, {1}, 2}})), Cell::wrong_name);
  EXPECT_EQ(cell(faulty(), said({})), Cell::missed);
}

TEST(Score, OfAHealthyRunOnlyViolationsAreAlarms) {
  EXPECT_EQ(cell(healthy(), said({})), Cell::clean);
  EXPECT_EQ(cell(healthy(), said({{"sum-not-mean", true, {0}, 1}})), Cell::clean);
  EXPECT_EQ(cell(healthy(), said({{"sum-not-mean", false, {0}, 1}})), Cell::false_alarm);
}

TEST(Score, WhatWasNotLookedAtIsNoPass) {
  EXPECT_EQ(cell(faulty(), {State::not_triggered, {}}), Cell::not_triggered);
  EXPECT_EQ(cell(healthy(), {State::not_triggered, {}}), Cell::not_triggered);
  EXPECT_EQ(cell(faulty(), {State::error, {}}), Cell::error);
  EXPECT_EQ(cell(healthy(), {State::error, {}}), Cell::error);
  EXPECT_EQ(cell(faulty(), {State::skipped, {}}), Cell::skipped);
  auto impossible = faulty();
  impossible.applicable = false;
  EXPECT_EQ(cell(impossible, said({{"sum-not-mean", false, {1}, 2}})), Cell::not_applicable);
  // It lacked the events for this one, and said another.
  EXPECT_EQ(cell(faulty(), {State::not_triggered, {{"no-sharding", false, {0}, 0}}}),
            Cell::wrong_name);
}

TEST(Score, WhatIsAskedAndNotAsItShouldBeIsWrong) {
  for (const auto cell : {Cell::slug_only, Cell::family_only, Cell::wrong_name, Cell::missed,
                          Cell::not_triggered, Cell::error})
    EXPECT_TRUE(is_wrong(faulty(), cell)) << to_string(cell);
  EXPECT_TRUE(is_wrong(healthy(), Cell::false_alarm));
  EXPECT_TRUE(is_wrong(healthy(), Cell::error));
  EXPECT_FALSE(is_wrong(faulty(), Cell::exact));
  for (const auto cell : {Cell::clean, Cell::not_triggered})
    EXPECT_FALSE(is_wrong(healthy(), cell)) << to_string(cell);
  for (const auto cell : {Cell::not_applicable, Cell::skipped})
    EXPECT_FALSE(is_wrong(faulty(), cell)) << to_string(cell);
}

TEST(Score, CountsWhatIsSaidBesideTheAnswer) {
  EXPECT_EQ(noise(faulty(), said({{"sum-not-mean", false, {1}, 2}})), 0);
  EXPECT_EQ(noise(faulty(), said({{"sum-not-mean", false, {1}, 2},
                                  {"no-sharding", false, {0}, 0},
                                  {"double-average", true, {0}, 0}})),
            1);
  EXPECT_EQ(noise(healthy(), said({{"no-sharding", false, {0}, 0}})), 1);
}

TEST(Score, CountsTheStepsUntilItIsFound) {
  EXPECT_EQ(steps_until_found(faulty(), said({{"sum-not-mean", false, {1}, 5}})), 3);
  EXPECT_EQ(steps_until_found(faulty(), said({{"sum-not-mean", false, {1}, -1}})), std::nullopt);
  EXPECT_EQ(steps_until_found(faulty(), said({})), std::nullopt);
  EXPECT_EQ(steps_until_found(healthy(), said({})), std::nullopt);
}

// Figures from Wilson's formula, computed apart.
TEST(Score, SharesHaveWilsonsInterval) {
  const Share of_nothing{0, 0}, all{10, 10}, none{0, 300}, some{45, 50};
  EXPECT_EQ(of_nothing.value(), std::nullopt);
  EXPECT_EQ(of_nothing.low(), std::nullopt);
  EXPECT_EQ(of_nothing.high(), std::nullopt);
  EXPECT_DOUBLE_EQ(all.value().value(), 1);
  EXPECT_NEAR(all.low().value(), 0.722467, 1e-6);
  EXPECT_DOUBLE_EQ(all.high().value(), 1);
  EXPECT_DOUBLE_EQ(none.low().value(), 0);
  EXPECT_NEAR(none.high().value(), 0.012643, 1e-6);
  EXPECT_NEAR(some.low().value(), 0.786397, 1e-6);
  EXPECT_NEAR(some.high().value(), 0.956524, 1e-6);
}

TEST(Score, AMatrixAddsUp) {
  const Answer right = said({{"sum-not-mean", false, {1}, 3}});
  auto impossible = faulty();
  impossible.applicable = false;
  const std::vector<Scored> runs{
      {faulty({1}, 3), right},                                // exact, 0 steps
      {faulty({0}, 1), right},                                // slug only, 2 steps
      {faulty(), said({{"double-average", false, {1}, 2}})},  // family only, 1 beside
      {faulty(), said({{"no-sharding", false, {1}, 2}})},     // wrong name, 1 beside
      {faulty(), said({})},                                   // missed
      {faulty(), {State::not_triggered, {}}},                 // a failure, too
      {faulty(), {State::error, {}}},                         // and so is this
      {impossible, said({})},                                 // not counted
      {faulty(), {State::skipped, {}}},                       // nor this
      {healthy(), said({})},
      {healthy(), said({{"a", false, {}, 0}, {"b", false, {}, 0}})},  // 2 beside
      {healthy(), {State::not_triggered, {}}},                        // neither silence nor alarm
  };
  const auto totals = score(runs, kFamilies);
  EXPECT_EQ(totals.exact.successes, 1);
  EXPECT_EQ(totals.exact.trials, 7);
  EXPECT_EQ(totals.slug.successes, 2);
  EXPECT_EQ(totals.family.successes, 3);
  EXPECT_EQ(totals.false_alarms.successes, 1);
  EXPECT_EQ(totals.false_alarms.trials, 2);
  EXPECT_EQ(totals.noisy.successes, 3);
  EXPECT_EQ(totals.noisy.trials, 10);
  EXPECT_DOUBLE_EQ(totals.noise_a_run.value(), 0.4);
  EXPECT_DOUBLE_EQ(totals.median_steps.value(), 1);
  EXPECT_EQ(totals.cells.at(Cell::not_triggered), 2);
  EXPECT_EQ(totals.cells.at(Cell::not_applicable), 1);
  EXPECT_EQ(totals.right, 2);
  EXPECT_EQ(totals.wrong, 7);
  EXPECT_EQ(totals.not_looked_at, 1);
  int all = 0;
  for (const auto& [kind, times] : totals.cells) all += times;
  EXPECT_EQ(all, static_cast<int>(runs.size()));
}

TEST(Score, OfNoRunsNothingIsKnown) {
  const auto totals = score({}, {});
  EXPECT_EQ(totals.exact.value(), std::nullopt);
  EXPECT_EQ(totals.false_alarms.value(), std::nullopt);
  EXPECT_EQ(totals.noise_a_run, std::nullopt);
  EXPECT_EQ(totals.median_steps, std::nullopt);
}

}  // namespace
}  // namespace lockstep::matrix
