#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/file.h>
#include <lockstep/report/earlier.h>
#include <lockstep/report/lesson_report.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../support/checkout.h"

namespace lockstep::report {
namespace {

Variant broken(bool manifested, std::vector<diagnose::Finding> findings) {
  Variant variant;
  variant.name = "sum-not-mean";
  variant.part = "by-hand";
  variant.kind = Kind::broken;
  variant.oracles = {{"sum-not-mean", "gradient over reference", 1, 2, 1e-3, manifested}};
  variant.findings = std::move(findings);
  variant.verdict = judge(variant);
  return variant;
}

diagnose::Finding finding(const std::string& pitfall,
                          diagnose::Severity severity = diagnose::Severity::violation) {
  return {pitfall, severity, {0, 1}, 3, -1, "evidence"};
}

TEST(Judge, BrokenMustManifestAndBeNamedByItsOwnSlugAlone) {
  EXPECT_EQ(broken(true, {finding("sum-not-mean")}).verdict, "as-expected");
  EXPECT_EQ(broken(false, {finding("sum-not-mean")}).verdict, "not-manifested");
  EXPECT_EQ(broken(true, {}).verdict, "not-named");
  EXPECT_EQ(broken(true, {finding("double-average")}).verdict, "misnamed");
  EXPECT_EQ(broken(true, {finding("sum-not-mean"), finding("double-average")}).verdict, "misnamed");
  // Advice names a pitfall only where there is no violation.
  const auto advice = diagnose::Severity::advice;
  EXPECT_EQ(broken(true, {finding("sum-not-mean", advice)}).verdict, "as-expected");
  EXPECT_EQ(broken(true, {finding("sum-not-mean"), finding("other", advice)}).verdict,
            "as-expected");
}

// Missing outcomes make oracles manifest: a crash must not prove a fault that does not crash.
TEST(Judge, BrokenMustEndAsMeant) {
  auto variant = broken(true, {finding("sum-not-mean")});
  variant.ending = Ending::crash;
  EXPECT_EQ(judge(variant), "ended-otherwise");
  variant.meant = Ending::crash;
  EXPECT_EQ(judge(variant), "as-expected");
  variant.ending = Ending::completed;
  EXPECT_EQ(judge(variant), "ended-otherwise");
}

TEST(Judge, CorrectMustCompleteInSilence) {
  Variant variant = broken(false, {});
  variant.kind = Kind::correct;
  EXPECT_EQ(judge(variant), "as-expected");
  variant.findings = {finding("sum-not-mean")};
  EXPECT_EQ(judge(variant), "false-alarm");
  variant.findings = {finding("sum-not-mean", diagnose::Severity::advice)};
  EXPECT_EQ(judge(variant), "as-expected");
  variant.oracles[0].manifested = true;
  EXPECT_EQ(judge(variant), "manifested");
  variant.ending = Ending::crash;
  EXPECT_EQ(judge(variant), "not-completed");
  variant.ending = Ending::skipped;
  EXPECT_EQ(judge(variant), "skipped");
}

// Rank 0 waits in its 8th call, before which rank 1 was killed.
diagnose::Stall two_ranks_that_stopped() {
  static const trace::Collective waits{.sequence = 8, .group = "0", .op = "allreduce"},
      before{.sequence = 7, .group = "0", .op = "broadcast"};
  static const trace::RankEnd killed{.rank = 1, .how = "signalled", .exit_code = 137, .signal = 9};
  diagnose::Stall place{.group = "0", .sequence = 8, .step = 2, .operation = "allreduce"};
  place.ranks.push_back({.rank = 0, .call = &waits, .last = &waits});
  place.ranks.push_back(
      {.rank = 1, .state = diagnose::RankState::dead, .last = &before, .end = &killed});
  return place;
}

TEST(Report, SaysWhereTheRanksStoodAndWhoIsToBlame) {
  LessonReport report;
  report.variants.push_back(broken(true, {}));
  report.variants[0].stall = stall_of(two_ranks_that_stopped());
  const auto stop = nlohmann::json::parse(to_json(report)).at("variants").at(0).at("stall");
  EXPECT_EQ(stop.at("operation"), "allreduce");
  EXPECT_EQ(stop.at("sequence"), 8);
  EXPECT_EQ(stop.at("step"), 2);
  const auto& waiting = stop.at("ranks").at(0);
  EXPECT_EQ(waiting.at("state"), "waiting");
  EXPECT_EQ(waiting.at("to_blame"), false);
  EXPECT_EQ(waiting.at("here").at("sequence"), 8);
  const auto& dead = stop.at("ranks").at(1);
  EXPECT_EQ(dead.at("state"), "dead");
  EXPECT_EQ(dead.at("to_blame"), true);
  EXPECT_TRUE(dead.at("here").is_null());
  EXPECT_EQ(dead.at("last").at("operation"), "broadcast");
  EXPECT_EQ(dead.at("signal"), 9);
  EXPECT_EQ(dead.at("ended"), "signalled");
}

LessonReport comparison() {
  LessonReport report;
  report.lesson = "03_ddp";
  report.title = "A title";
  report.environment = environment_here("/nowhere");
  report.environment.torch_version = "2.11.0";
  report.environment.backend = "gloo";
  report.environment.data = "synthetic";
  auto nan = broken(true, {finding("sum-not-mean")});
  nan.oracles[0].observed = std::numeric_limits<double>::quiet_NaN();
  nan.losses = {{0.5, std::nan("")}, {}};
  nan.ending = nan.meant = Ending::crash;
  nan.reason = "rank 1 raised: bytes that are no text \xff\xfe <b>\n";
  nan.stall = stall_of(two_ranks_that_stopped());
  nan.pictures = Pictures{.divergence = {{-1, 0}, {0, 0.1961}, {1, std::nan("")}},
                          .tolerance = 1e-6,
                          .calls = {{0, 8, "allreduce \xff<b>", "0", 0, 0.001, true},
                                    {1, 8, "broadcast", "0", 1e-6, {}}},
                          .truncated = true,
                          .first_difference = Pictures::Difference{"0", 8, {1}},
                          .passes = {{3, 101, 2, {{1, 2, 3}, {}}}}};
  report.variants = {nan};
  Variant skipped;
  skipped.name = "correct";
  skipped.part = "by-hand";
  skipped.ending = Ending::skipped;
  skipped.reason = "no GPU";
  skipped.verdict = judge(skipped);
  report.variants.push_back(skipped);
  return report;
}

TEST(Report, IsJsonWhateverARankSaid) {
  const auto text = nlohmann::json::parse(to_json(comparison()));
  EXPECT_TRUE(text.at("as_expected").get<bool>());
  EXPECT_TRUE(text.at("variants").at(0).at("oracles").at(0).at("observed").is_null());
  EXPECT_EQ(text.at("environment").at("git_revision"), "unknown");
}

TEST(Report, HasThePicturesOfARun) {
  const auto text = to_json(comparison());
  const auto variants = nlohmann::json::parse(text).at("variants");
  EXPECT_FALSE(variants.at(1).contains("pictures")) << "it did not run";
  const auto& pictures = variants.at(0).at("pictures");
  EXPECT_EQ(pictures.at("tolerance"), 1e-6);
  EXPECT_TRUE(pictures.at("divergence").at(2).at("distance").is_null()) << "not finite";
  const auto& timeline = pictures.at("timeline");
  EXPECT_EQ(timeline.at("calls").at(0).at("left_s"), 0.001);
  EXPECT_EQ(timeline.at("calls").at(0).at("failed"), true);
  EXPECT_TRUE(timeline.at("calls").at(1).at("left_s").is_null());
  EXPECT_FALSE(timeline.at("calls").at(1).contains("failed"));
  EXPECT_EQ(timeline.at("first_difference"),
            nlohmann::json({{"group", "0"}, {"sequence", 8}, {"ranks", {1}}}));
  EXPECT_EQ(pictures.at("owners").at(0).at("every"), 2);
  EXPECT_EQ(pictures.at("owners").at(0).at("ranks"), nlohmann::json::parse("[[1, 2, 3], []]"));
  EXPECT_NE(text.find("[1,2,3]"), std::string::npos) << "thousands of ids have no line each";
}

std::size_t longest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t longest = 0;
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

TEST(Text, FitsATerminal) {
  auto variant = broken(true, {finding("sum-not-mean")});
  variant.name = "evaluation-through-wrapper-on-one-rank";
  variant.verdict = "ended-otherwise";
  variant.what = variant.findings[0].evidence = variant.oracles[0].metric =
      "many words that together are longer than what a line of eighty columns has room for";
  variant.reason = "rank 1 raised:\n" + variant.what;
  variant.losses = std::vector<std::vector<double>>(16, {0.5});
  EXPECT_LE(longest_line(to_text(variant)), 80U) << to_text(variant);
  LessonReport report = comparison();
  report.lesson = "13_clipping_and_mixed_precision";
  report.variants = std::vector<Variant>(15, report.variants[1]);
  report.environment.data = "synthetic data of 784 inputs and 10 classes";
  EXPECT_LE(longest_line(to_text(report)), 80U) << to_text(report);
}

TEST(Text, SaysWhoAndWhen) {
  const auto said = [](std::vector<int> ranks, const std::string& participants) {
    auto variant = broken(true, {finding("sum-not-mean")});
    variant.findings[0].ranks = std::move(ranks);
    variant.participants = participants;
    return to_text(variant);
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(said({0, 1}, "ranks"), HasSubstr("violation: sum-not-mean, ranks 0 and 1, step 3\n"));
  EXPECT_THAT(said({2}, "ranks"), HasSubstr("violation: sum-not-mean, rank 2, step 3\n"));
  EXPECT_THAT(said({0, 1, 3}, "devices"), HasSubstr(", devices 0, 1 and 3, step 3\n"));
  EXPECT_THAT(said({}, "ranks"), HasSubstr("violation: sum-not-mean, step 3\n"));
}

TEST(Earlier, TellsHowLongEachVariantTook) {
  const TemporaryFolder folder("lockstep-report-test");
  auto report = comparison();
  report.variants[0].seconds = 2.5;
  const auto file = folder.path() / "report.json";
  write_file(file, to_json(report));
  EXPECT_EQ(seconds_by_variant(file), (std::map<std::string, double>{{"sum-not-mean", 2.5}}))
      << "the other one was skipped";
}

TEST(Earlier, IsEmptyWithoutAReport) {
  const TemporaryFolder folder("lockstep-report-test");
  EXPECT_TRUE(seconds_by_variant(folder.path() / "absent.json").empty());
  EXPECT_TRUE(seconds_by_variant(folder.path()).empty());
  EXPECT_TRUE(seconds_by_variant({}).empty());
  write_file(folder.path() / "torn.json", "{\"variants\": [{");
  EXPECT_TRUE(seconds_by_variant(folder.path() / "torn.json").empty());
  write_file(folder.path() / "other.json", "[1, 2]");
  EXPECT_TRUE(seconds_by_variant(folder.path() / "other.json").empty());
}

// The schema must accept what is written, and refuse what is not a report.
TEST(Report, FitsItsSchema) {
  if (testing::python().empty()) GTEST_SKIP() << "no Python with jsonschema was configured";
  const TemporaryFolder folder("lockstep-report-test");
  const auto good = folder.path() / "good.json", bad = folder.path() / "bad.json";
  write_file(good, to_json(comparison()));
  auto damaged = nlohmann::json::parse(to_json(comparison()));
  damaged["variants"][0]["verdict"] = "wonderful";
  damaged["variants"][1]["reason"] = "";
  damaged["variants"][0]["pictures"]["timeline"]["calls"][0].erase("left_s");
  write_file(bad, damaged.dump());
  const auto accepted = testing::validate("lesson", {good});
  EXPECT_EQ(accepted.exit_code, 0) << accepted.out << accepted.err;
  const auto refused = testing::validate("lesson", {bad});
  EXPECT_EQ(refused.exit_code, 1) << refused.err;
  EXPECT_NE(refused.out.find("variants[0].verdict"), std::string::npos) << refused.out;
  EXPECT_NE(refused.out.find("variants[1].reason"), std::string::npos) << refused.out;
  EXPECT_NE(refused.out.find("pictures.timeline.calls[0]"), std::string::npos) << refused.out;
}

}  // namespace
}  // namespace lockstep::report
