#include "expect_variant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lockstep::testing {

using nlohmann::json;

namespace {

// Where one process went through the same global batches, it loses what the ranks lose on the mean; unless their
// batches are unequal, and the mean over ranks is not the samples'.
void expect_losses_of_one_process(const LessonVariant& wanted, const json& variant) {
  const std::set<std::string> unequal{"06_sync_batch_norm correct-by-hand",
                                      "11_uneven_inputs correct-ending"};
  const double tolerance = unequal.count(wanted.lesson + " " + wanted.name) != 0 ? 0.01 : 1e-5;
  const json& reference = variant.at("reference_losses");
  for (std::size_t epoch = 0; epoch < reference.size(); ++epoch) {
    double sum = 0;
    for (const auto& rank : variant.at("losses")) sum += rank.at(epoch).get<double>();
    EXPECT_NEAR(sum / static_cast<double>(variant.at("losses").size()),
                reference.at(epoch).get<double>(), tolerance)
        << "epoch " << epoch;
  }
}

// Ranks, step, and what else was found and follows from it.
void expect_as_on_the_page(const report::Facts& facts, int world_size, const json& finding) {
  if (!facts.ranks.empty()) EXPECT_EQ(finding.at("ranks"), json(facts.ranks));
  if (facts.step) EXPECT_EQ(finding.at("step"), *facts.step);
  // Of a job that stops, what else is found may hang on who noticed first; one rank is compared with no other.
  const std::set<std::string> also(facts.also.begin(), facts.also.end()),
      found = finding.value("accounts_for", std::set<std::string>{});
  if (facts.ending == "completed" && world_size > 1) EXPECT_EQ(found, also);
  EXPECT_TRUE(std::includes(also.begin(), also.end(), found.begin(), found.end()))
      << "the page's `also` lacks some of " << ::testing::PrintToString(found);
}

}  // namespace

std::set<std::string> named(const json& variant, const std::string& severity) {
  std::set<std::string> slugs;
  for (const auto& finding : variant.at("findings"))
    if (finding.at("severity") == severity) slugs.insert(finding.at("pitfall").get<std::string>());
  return slugs;
}

void expect_as_claimed(const LessonVariant& wanted, int world_size, const json& variant,
                       int exit_code) {
  const auto facts = report::facts_of(wanted.page, world_size);
  EXPECT_EQ(variant.at("outcome"), facts.ending);
  if (!wanted.broken) {
    for (const auto& oracle : variant.at("oracles"))
      EXPECT_FALSE(oracle.at("manifested").get<bool>()) << oracle.dump();
    // On one rank there may be no oracle that applies; on more there is one for each fault of the part.
    if (world_size > 1) EXPECT_FALSE(variant.at("oracles").empty());
    if (variant.contains("reference_losses") && wanted.name.starts_with("correct"))
      expect_losses_of_one_process(wanted, variant);
    EXPECT_EQ(named(variant, "violation"), std::set<std::string>{});
  } else {
    const auto& oracle = variant.at("oracles").at(0);
    ASSERT_TRUE(oracle.at("observed").is_number()) << oracle.dump();
    ASSERT_TRUE(facts.figure) << "its page says no figure";
    const double observed = oracle.at("observed").get<double>();
    if (facts.figure->at_least)
      EXPECT_GE(observed, facts.figure->value) << oracle.dump();
    else
      EXPECT_NEAR(observed, facts.figure->value, facts.figure->within) << oracle.dump();
    EXPECT_TRUE(oracle.at("manifested").get<bool>());
    auto violations = named(variant, "violation"), advice = named(variant, "advice");
    EXPECT_EQ((facts.advice ? advice : violations).erase(wanted.name), 1u);
    EXPECT_EQ(violations, std::set<std::string>{});
    EXPECT_EQ(advice, std::set<std::string>(facts.unrelated.begin(), facts.unrelated.end()));
    expect_as_on_the_page(facts, world_size, variant.at("findings").at(0));
  }
  EXPECT_EQ(variant.at("verdict"), "as-expected");
  EXPECT_EQ(exit_code, 0);
}

std::string case_name(const LessonVariant& wanted) {
  std::string name = wanted.lesson + "_" + wanted.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return "L" + name;
}

}  // namespace lockstep::testing
