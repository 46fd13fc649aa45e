// The lines of a program that a finding is about: read from a job's files, of which some are not to be trusted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/diagnose/text.h>
#include <lockstep/report/finding.h>
#include <lockstep/report/job.h>
#include <lockstep/report/places.h>
#include <lockstep/trace/attempts.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "../diagnose/job.h"

namespace lockstep::report {
namespace {

using nlohmann::json;
using simulated::Job;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

json line(const std::string& kind, std::int64_t step, std::int64_t number) {
  return {{"kind", kind},
          {"step", step},
          {"file", "/a/train.py"},
          {"line", number},
          {"source", "line " + std::to_string(number)}};
}

class Places : public ::testing::Test {
 protected:
  void write_text(int rank, const std::string& text) { write_file(file(rank), text); }
  void write(int rank, const std::vector<json>& lines) {
    std::string text;
    for (const auto& one : lines) text += one.dump() + "\n";
    write_text(rank, text);
  }
  std::filesystem::path file(int rank) const {
    return folder_.path() / ("places_" + std::to_string(rank) + ".jsonl");
  }
  // The lines of one finding.
  std::vector<diagnose::Place> of(diagnose::Finding finding) {
    diagnose::Diagnosis diagnosis{.rows = {}, .findings = {std::move(finding)}};
    left_out_ = add_places(folder_.path(), trace_, diagnosis);
    return diagnosis.findings.front().places;
  }
  std::vector<std::int64_t> numbers(const std::string& pitfall, std::int64_t step = 0,
                                    std::int64_t sequence = -1) {
    std::vector<std::int64_t> numbers;
    for (const auto& place :
         of({.pitfall = pitfall, .ranks = {0, 1}, .step = step, .sequence = sequence}))
      numbers.push_back(place.line);
    return numbers;
  }

  TemporaryFolder folder_{"lockstep-places-test"};
  trace::Trace trace_ = Job(2).run();
  std::vector<std::string> left_out_;
};

TEST_F(Places, AreThoseThatMayBeMeantByThen) {
  const std::vector<json> lines = {line("pass", 0, 3), line("pass", 0, 5), line("pass", 9, 7)};
  write(0, lines);
  write(1, lines);
  const auto places = of({.pitfall = "missing-set-epoch", .ranks = {0, 1}, .step = 4});
  ASSERT_EQ(places.size(), 2U);
  EXPECT_EQ(places[0].file, "/a/train.py");
  EXPECT_EQ(places[0].line, 3);
  EXPECT_EQ(places[0].source, "line 3");
  EXPECT_EQ(places[1].line, 5);
  for (const auto& place : places) EXPECT_THAT(place.ranks, ElementsAre(0, 1));
  EXPECT_THAT(left_out_, IsEmpty());
}

TEST_F(Places, AreOfTheRanksAtFaultAlone) {
  write(0, {line("update", 0, 3)});
  write(1, {line("update", 0, 4)});
  const auto places = of({.pitfall = "update-differs", .ranks = {1}, .step = 0});
  ASSERT_EQ(places.size(), 1U);
  EXPECT_EQ(places[0].line, 4);
  EXPECT_THAT(places[0].ranks, ElementsAre(1));
}

// By its equation, or as its entry says.
TEST_F(Places, AreOfWhatTheFindingIsAbout) {
  write(0, {line("pass", 0, 1), line("backward", 0, 2), line("update", 0, 3)});
  for (const auto* pitfall :
       {"missing-set-epoch", "no-sharding", "uneven-batches", "dataset-unseeded"})
    EXPECT_THAT(numbers(pitfall), ElementsAre(1)) << pitfall;
  for (const auto* pitfall : {"forward-bypasses-wrapper", "no-gradient-sync", "double-average"})
    EXPECT_THAT(numbers(pitfall), ElementsAre(2)) << pitfall;
  for (const auto* pitfall :
       {"update-differs", "lr-not-scaled", "local-overflow-skip", "clip-before-reduction"})
    EXPECT_THAT(numbers(pitfall), ElementsAre(3)) << pitfall;
  for (const auto* pitfall :
       {"configuration-differs", "silent-single-process", "shuffled-evaluation", "order-mismatch",
        "module-prefix", "replicas-diverged", "no-such-pitfall"})
    EXPECT_THAT(numbers(pitfall), IsEmpty()) << pitfall;
}

// A line is written when it first comes: that of init_process_group before the first step.
TEST_F(Places, OfAHangInTheTrainingAreNoneFromBeforeIt) {
  write(0, {line("collective", -1, 1), line("collective", 0, 2), line("collective", 9, 3)});
  EXPECT_THAT(numbers("order-mismatch", 9), ElementsAre(3, 2));
  EXPECT_THAT(numbers("order-mismatch", 0), ElementsAre(2, 1));
}

TEST_F(Places, AreOfWhatComesOnceOrIsTheProgramsOwn) {
  write(0, {line("wrapping", -1, 1), line("pass", 0, 2), line("backward", 0, 3),
            line("update", 0, 4), line("checkpoint", 0, 5), line("collective", 0, 6)});
  for (const auto* pitfall : {"parameters-differ-across-ranks", "frozen-after-wrapping",
                              "sync-bn-after-wrapping", "unused-parameter", "no-initial-broadcast"})
    EXPECT_THAT(numbers(pitfall), ElementsAre(1)) << pitfall;
  for (const auto* pitfall : {"module-prefix", "concurrent-writers", "read-before-written",
                              "ema-on-one-rank", "optimizer-state-missing"})
    EXPECT_THAT(numbers(pitfall), ElementsAre(5)) << pitfall;
  for (const auto* pitfall : {"order-mismatch", "shape-mismatch", "rank-conditional-collective",
                              "no-progress", "collective-mismatch"})
    EXPECT_THAT(numbers(pitfall, 0, 7), ElementsAre(6)) << pitfall;
  for (const auto* pitfall : {"missing-set-epoch", "evaluation-through-wrapper-on-one-rank"})
    EXPECT_THAT(numbers(pitfall), Not(testing::Contains(6))) << pitfall;
  for (const auto* pitfall :
       {"slow-rank", "peer-dies", "rank-skips-init", "zero-grad-on-bucket-view"})
    EXPECT_THAT(numbers(pitfall, 0, 7), IsEmpty()) << pitfall;
}

TEST_F(Places, OfAStallAreWhereTheRankWasAsked) {
  write(0, {line("pass", 0, 1), line("stall", -1, 9)});
  write(1, {line("pass", 0, 1)});
  EXPECT_THAT(numbers("no-progress", 14, 20), ElementsAre(9));
  EXPECT_THAT(numbers("missing-set-epoch", 14), ElementsAre(1));
}

// The finding names one rank; where the others wait is told behind it.
TEST_F(Places, OfAStallAreThoseOfAllRanks) {
  write(0, {line("stall", -1, 9)});
  write(1, {line("stall", -1, 4)});
  const auto places = of({.pitfall = "no-progress", .ranks = {1}, .step = 14, .sequence = 20});
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(std::pair(places[0].line, places[0].ranks), std::pair(4L, std::vector<int>{1}));
  EXPECT_EQ(std::pair(places[1].line, places[1].ranks), std::pair(9L, std::vector<int>{0}));
  diagnose::Diagnosis diagnosis;
  diagnosis.findings = {
      {.pitfall = "no-progress", .ranks = {1}, .step = 14, .sequence = 20, .evidence = "evidence"}};
  add_places(folder_.path(), trace_, diagnosis);
  EXPECT_THAT(diagnose::to_text(diagnosis, "/a"),
              testing::HasSubstr("    train.py:4: line 4\n    train.py:9 (rank 0): line 9\n"));
}

// Whatever the step, and each exception of one line by itself.
TEST_F(Places, OfAnExceptionAreWhereItBegan) {
  for (const auto& [rank, what] : {std::pair(0, "KeyError: 3"), std::pair(1, "KeyError: 4")}) {
    auto raised = line("raised", 12, 9);
    raised["raised"] = what;
    write(rank, {line("pass", 0, 1), raised});
  }
  const auto alone = of({.pitfall = "one-rank-raises", .ranks = {1}, .step = 2, .sequence = 20});
  ASSERT_EQ(alone.size(), 1U);
  EXPECT_EQ(std::pair(alone[0].line, alone[0].raised), std::pair(9L, std::string("KeyError: 4")));
  EXPECT_THAT(numbers("every-rank-raises"), ElementsAre(9, 9));
  EXPECT_THAT(numbers("missing-set-epoch"), ElementsAre(1));

  diagnose::Diagnosis diagnosis;
  diagnosis.findings = {{.pitfall = "every-rank-raises", .ranks = {0, 1}, .evidence = "evidence"}};
  add_places(folder_.path(), trace_, diagnosis);
  EXPECT_THAT(diagnose::to_text(diagnosis, "/a"),
              HasSubstr("    train.py:9 (rank 0): line 9\n        KeyError: 3\n"));
  EXPECT_EQ(json::parse(to_json(diagnosis.findings[0])).at("places").at(1).at("raised"),
            "KeyError: 4");
}

TEST_F(Places, AreOfTheLastAttempt) {
  std::vector<trace::Trace> attempts;
  for (int i = 0; i < 3; ++i) attempts.push_back(Job(2).run());
  trace_ = trace::concatenate(std::move(attempts));
  const auto& rank = trace_.ranks.front();
  const auto begins = rank.events.at(rank.last_attempt).step + 1;
  ASSERT_GT(begins, 5);
  write(0, {line("update", 0, 3), line("update", 5, 4)});
  EXPECT_THAT(numbers("update-differs", begins), ElementsAre(3));
  EXPECT_THAT(numbers("update-differs", begins + 6), ElementsAre(3, 4));
  EXPECT_THAT(numbers("update-differs", begins + 5), ElementsAre(4, 3)) << "what came first there";
  EXPECT_THAT(numbers("update-differs", 2), ElementsAre(3)) << "what an earlier attempt began with";
}

TEST_F(Places, AreToldInTextAndJson) {
  diagnose::Diagnosis diagnosis;
  diagnosis.findings = {
      {.pitfall = "no-sharding", .ranks = {0}, .step = 0, .evidence = "evidence"}};
  write(0, {line("pass", 0, 3)});
  add_places(folder_.path(), trace_, diagnosis);
  EXPECT_THAT(diagnose::to_text(diagnosis), HasSubstr("    evidence\n    /a/train.py:3: line 3\n"));
  EXPECT_THAT(diagnose::to_text(diagnosis, "/a"),
              HasSubstr("    evidence\n    train.py:3: line 3\n"));
  EXPECT_THAT(diagnose::to_text(diagnosis, "/a/tra"), HasSubstr(" /a/train.py:3"));
  EXPECT_EQ(
      json::parse(to_json(diagnosis.findings[0])).at("places"),
      json::parse(R"([{"ranks": [0], "file": "/a/train.py", "line": 3, "source": "line 3"}])"));
  diagnosis.findings[0].places.clear();
  EXPECT_FALSE(json::parse(to_json(diagnosis.findings[0])).contains("places"));
}

TEST_F(Places, OfADamagedFileAreTheWholeOnes) {
  const auto good = line("pass", 0, 3);
  std::string bad;
  for (const auto* key : {"kind", "step", "file", "line", "source"})
    for (const json& value :
         {json(nullptr), json(1.5), json(true), json::array(), json::object()}) {
      auto wrong = good;
      wrong[key] = value;
      bad += wrong.dump() + "\n";
    }
  for (const auto& [key, value] : {std::pair<const char*, json>{"step", -2},
                                   {"line", 0},
                                   {"line", -1},
                                   {"line", "3"},
                                   {"step", 18'446'744'073'709'551'615U},
                                   {"kind", 0},
                                   {"source", 7},
                                   {"file", ""},
                                   {"raised", 7},
                                   {"source", std::string(1'001, 'x')},
                                   {"file", std::string(5'000, 'x')}}) {
    auto wrong = good;
    wrong[key] = value;
    bad += wrong.dump() + "\n";
  }
  bad += "\n[]\n7\n\"text\"\nnull\n{\n\xff\xfe\n" + std::string(16'000, '[') + "\n" +
         std::string(100'000, ' ') + good.dump() + "\n" + std::string("\0\n", 2) +
         R"({"kind": "pass", "st{"kind": "pass"})" + "\n";
  const auto count = std::count(bad.begin(), bad.end(), '\n');
  write_text(
      0, good.dump() + "\n" + bad + line("pass", 0, 5).dump() + "\n" + good.dump().substr(0, 20));
  EXPECT_THAT(numbers("no-sharding"), ElementsAre(3, 5));
  ASSERT_EQ(left_out_.size(), 1U);
  EXPECT_EQ(left_out_[0],
            file(0).string() +
                ":2 is left out: it is no object of kind, step, file, line and source; so are " +
                std::to_string(count) + " more");
}

TEST_F(Places, OfWhatIsNoFileAreNone) {
  write(1, {line("pass", 0, 3)});
  const auto refused = [&] {
    EXPECT_THAT(numbers("no-sharding"), ElementsAre(3)) << "rank 1 has its own";
    ASSERT_EQ(left_out_.size(), 1U);
    EXPECT_THAT(left_out_[0], HasSubstr(file(0).string()));
    std::filesystem::remove(file(0));
  };
  std::filesystem::create_directory(file(0));
  refused();
  ASSERT_EQ(mkfifo(file(0).c_str(), 0600), 0);  // a reader would wait
  refused();
  std::filesystem::create_symlink("/dev/zero", file(0));
  refused();
  std::filesystem::create_symlink("/no/such/file", file(0));
  refused();
  write_text(0, std::string((1 << 20) + 1, '\n'));
  refused();
  EXPECT_THAT(numbers("no-sharding"), ElementsAre(3));
  EXPECT_THAT(left_out_, IsEmpty());
}

TEST_F(Places, ActUponNoTerminal) {
  auto hostile = line("pass", 0, 3);
  hostile["file"] = "/a/\x1b[2J\r\n\u009b2J<b>.py";
  hostile["source"] = "\u202e\x07 \u2066 \u200f d\u00e9j\u00e0 \u8bad";
  write(0, {hostile});
  const auto places = of({.pitfall = "no-sharding", .ranks = {0}, .step = 0});
  ASSERT_EQ(places.size(), 1U);
  EXPECT_EQ(places[0].file, R"(/a/\x1b[2J\x0d\x0a\xc2\x9b2J<b>.py)");
  EXPECT_EQ(places[0].source,
            "\\xe2\\x80\\xae\\x07 \\xe2\\x81\\xa6 \\xe2\\x80\\x8f d\u00e9j\u00e0 \u8bad");
}

TEST_F(Places, HideNoFinding) {
  std::vector<json> lines;
  for (int number = 1; number <= 2'000; ++number) lines.push_back(line("pass", 0, number));
  write(0, lines);
  write(1, lines);
  const auto places = of({.pitfall = "no-sharding", .ranks = {0, 1}, .step = 0});
  ASSERT_EQ(places.size(), 10U);
  for (const auto& place : places) EXPECT_THAT(place.ranks, ElementsAre(0, 1));
}

TEST(Escaped, WhatIsNotSeenAndWhatIsNoUtf8) {
  for (const auto* shown : {"plain", "d\u00e9j\u00e0 \u8bad \U0001f600"})
    EXPECT_EQ(escaped(shown), shown);
  EXPECT_EQ(escaped(std::string("a\0b\x7f", 4)), R"(a\x00b\x7f)");
  EXPECT_EQ(escaped("\u061c\u200b\ufeff"), R"(\xd8\x9c\xe2\x80\x8b\xef\xbb\xbf)");
  EXPECT_EQ(escaped("\U000e0041"), R"(\xf3\xa0\x81\x81)");
  EXPECT_EQ(escaped("\x9b"
                    "2J\xc2"),
            R"(\x9b2J\xc2)")
      << "a byte alone, and a character that is cut";
  EXPECT_EQ(escaped("\xe2\x80"), R"(\xe2\x80)");
  EXPECT_EQ(escaped("\xc0\x9b\xed\xa0\x80"), R"(\xc0\x9b\xed\xa0\x80)")
      << "too long, and a surrogate";
}

TEST(Job, OfTracesThatDoNotOverlapInTimeMayBeOfTwoRuns) {
  auto trace = Job(2).run();
  for (auto& rank : trace.ranks) rank.started_ns = rank.events.front().time_ns;
  EXPECT_EQ(may_be_of_two_runs(trace), std::nullopt);
  auto& late = trace.ranks[1];
  const auto later = trace.ranks[0].events.back().time_ns + 1;
  late.started_ns += later;
  for (auto& event : late.events) event.time_ns += later;
  const auto text = may_be_of_two_runs(trace);
  ASSERT_TRUE(text);
  EXPECT_THAT(*text, testing::StartsWith("rank 0 had ended before rank 1 began"));
  trace.ends.push_back({.rank = 0, .how = "raised"});
  EXPECT_EQ(may_be_of_two_runs(trace), std::nullopt) << "one launcher saw both";
}

}  // namespace
}  // namespace lockstep::report
