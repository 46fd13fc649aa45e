// The facts at the top of the pitfalls' pages: how they are read, and that the detectors agree with them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/nearest.h>
#include <lockstep/report/facts.h>

#include <algorithm>
#include <regex>
#include <set>

namespace lockstep::simulated {
namespace {

using ::testing::HasSubstr;

report::Facts facts(std::map<std::string, std::string> said, int world_size = 3) {
  return report::facts_of({.title = "a title", .text = {}, .facts = std::move(said)}, world_size);
}

TEST(Facts, SayRanksByAWordOrAList) {
  EXPECT_EQ(facts({{"ranks", "all"}}).ranks, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(facts({{"ranks", "first"}}).ranks, std::vector<int>{0});
  EXPECT_EQ(facts({{"ranks", "last"}}).ranks, std::vector<int>{2});
  EXPECT_EQ(facts({{"ranks", "[0, 2]"}}).ranks, (std::vector<int>{0, 2}));
  EXPECT_TRUE(facts({}).ranks.empty());
}

TEST(Facts, AreOneValueOrOneForEachNumberOfRanks) {
  const std::string ranks = "2: all, 4: [1, 3], else: last";
  EXPECT_EQ(facts({{"ranks", ranks}}, 2).ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(facts({{"ranks", ranks}}, 4).ranks, (std::vector<int>{1, 3}));
  EXPECT_EQ(facts({{"ranks", ranks}}, 5).ranks, std::vector<int>{4});
  EXPECT_EQ(facts({{"step", "-1"}}).step, -1);
  EXPECT_EQ(facts({{"step", "2: 16, 3: 11"}}, 3).step, 11);
  EXPECT_EQ(facts({{"step", "2: 16, 3: 11"}}, 4).step, std::nullopt);
}

TEST(Facts, SayAFigureAndHowClosely) {
  EXPECT_EQ(facts({{"figure", "W"}}).figure->value, 3);
  EXPECT_EQ(facts({{"figure", "1/W"}}, 4).figure->value, 0.25);
  const auto close = facts({{"figure", "2: 0.5, else: 0.25 within 0.01"}}).figure;
  EXPECT_EQ(close->value, 0.25);
  EXPECT_EQ(close->within, 0.01);
  EXPECT_FALSE(close->at_least);
  EXPECT_TRUE(facts({{"figure", "at least 0.3"}}).figure->at_least);
  EXPECT_EQ(facts({{"figure", "2: 1"}}).figure, std::nullopt);
}

TEST(Facts, ThatCannotBeReadAreNamed) {
  using Said = std::vector<std::pair<std::string, std::string>>;
  for (const auto& [name, value] : Said{{"ranks", "some"},
                                        {"step", "late"},
                                        {"figure", "W+1"},
                                        {"ending", "late"},
                                        {"severity", "advise"},
                                        {"rank", "all"},
                                        {"step", "2 : 3"}}) {
    try {
      facts({{name, value}});
      ADD_FAILURE() << name << ": " << value;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("\"a title\": its " + name + " cannot be read: " + value));
    }
  }
}

class Detectors : public ::testing::Test {
 protected:
  // By slug.
  const std::map<std::string, report::Page> pages_ = report::all_pages(LOCKSTEP_SOURCE_DIR);
};

TEST_F(Detectors, AreOneForEachPage) {
  std::vector<std::string> slugs, named;
  for (const auto& [slug, page] : pages_) slugs.push_back(slug);
  for (const auto& detector : diagnose::detectors())
    if (!diagnose::is_generic(detector.slug)) named.push_back(detector.slug);
  EXPECT_EQ(named, slugs);  // both by slug
}

// Kinds of event, in backticks.
std::set<std::string> kinds_in(const std::string& text) {
  static const std::regex kind("`([a-z_]+)`");
  std::set<std::string> kinds;
  for (std::sregex_iterator at(text.begin(), text.end(), kind), end; at != end; ++at)
    kinds.insert((*at)[1]);
  return kinds;
}

TEST_F(Detectors, NeedAndBreakWhatTheirPagesSay) {
  for (const auto& [slug, page] : pages_) {
    SCOPED_TRACE(slug);
    const auto* detector = diagnose::detector_of(slug);
    ASSERT_NE(detector, nullptr);
    ASSERT_TRUE(page.facts.count("level") && page.facts.count("needs"));
    EXPECT_EQ(page.facts.at("breaks"), diagnose::text_of(detector->equation).slug);
    EXPECT_EQ(page.facts.at("level"), std::to_string(detector->lowest_level()));
    auto needed = kinds_in(page.facts.at("needs").substr(0, page.facts.at("needs").find(';')));
    needed.erase("distributed_data_parallel");  // a kind of engine
    EXPECT_EQ(needed, std::set<std::string>(detector->needs.begin(), detector->needs.end()));
  }
}

TEST_F(Detectors, HavePagesWhoseFactsCanBeRead) {
  for (const auto& [slug, page] : pages_)
    for (const int world_size : {1, 2, 3, 16}) {
      const auto facts = report::facts_of(page, world_size);
      EXPECT_TRUE(page.facts.count("figure")) << slug;
      for (const auto& others : {facts.also, facts.unrelated})
        for (const auto& other : others)
          EXPECT_NE(diagnose::detector_of(other), nullptr) << slug << ": " << other;
    }
}

// Or both would be left out, each for the other's sake.
TEST_F(Detectors, DoNotAccountForEachOther) {
  const auto accounts_for = [](const diagnose::Detector& cause, const diagnose::Detector& effect) {
    return std::count(cause.accounts_for.begin(), cause.accounts_for.end(), effect.slug) > 0 ||
           (cause.stage != diagnose::Stage::none && cause.stage < effect.stage);
  };
  const auto& all = diagnose::detectors();
  // Those that nothing left accounts for are taken away, until none is left.
  std::vector<const diagnose::Detector*> left;
  for (const auto& detector : all) left.push_back(&detector);
  while (!left.empty()) {
    const auto before = left.size();
    const auto those = left;
    std::erase_if(left, [&](const auto* effect) {
      return std::none_of(those.begin(), those.end(),
                          [&](const auto* cause) { return accounts_for(*cause, *effect); });
    });
    ASSERT_LT(left.size(), before) << left.front()->slug << " is in a circle";
  }
}

// One misspelt would account for nothing, in silence.
TEST_F(Detectors, AccountForFindingsThatThereAre) {
  for (const auto& detector : diagnose::detectors())
    for (const auto& effect : detector.accounts_for)
      EXPECT_TRUE(diagnose::is_generic(effect) || pages_.count(effect) > 0)
          << detector.slug << " accounts for " << effect;
}

TEST_F(Detectors, AreThreeOfThePagesNearAGenericOne) {
  for (const auto& detector : diagnose::detectors()) {
    std::set<std::string> nearest;
    for (const auto& one : diagnose::nearest_to(detector.slug)) {
      EXPECT_EQ(pages_.count(one.pitfall), 1U) << detector.slug << ": " << one.pitfall;
      nearest.insert(one.pitfall);
    }
    EXPECT_EQ(nearest.size(), diagnose::is_generic(detector.slug) ? 3U : 0U) << detector.slug;
  }
}

}  // namespace
}  // namespace lockstep::simulated
