// Cases on disk, and checkers that are asked about them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/matrix/checkers.h>
#include <lockstep/matrix/report.h>

#include <nlohmann/json.hpp>

#include "../support/refusal.h"
#include "case.h"

namespace lockstep::matrix {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

class Matrices : public ::testing::Test {
 protected:
  Case make(const std::string& name, const std::string& pitfall, std::uint64_t other = 7) {
    return make_case(folder_.path(), name, {.pitfall = pitfall, .other = other});
  }
  // A checker: what it runs, with the folder of traces as $1.
  std::string script(const std::string& text) const {
    const auto file = folder_.path() / "checker.sh";
    write_file(file, text + "\n");
    return "sh \"" + file.string() + "\"";
  }
  std::string error_of(const std::vector<fs::path>& folders) {
    return refusal([&] { find_cases(folders); });
  }
  TemporaryFolder folder_{"lockstep-matrix"};
};

TEST_F(Matrices, CasesAreFoundWithTheirTruth) {
  make("b/broken", "dataset-unseeded");
  make("a/right", "");
  const auto cases = find_cases({folder_.path()});
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(cases[0].truth.name, "a/right");
  EXPECT_EQ(cases[0].truth.pitfall, "");
  EXPECT_EQ(cases[1].truth.pitfall, "dataset-unseeded");
  EXPECT_EQ(cases[1].truth.ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(cases[1].truth.step, std::nullopt);
  EXPECT_EQ(cases[1].folder, folder_.path() / "b" / "broken");
  EXPECT_EQ(families_of(cases), (Families{{"dataset-unseeded", "03"}}));
}

TEST_F(Matrices, BadCasesAreNamedWithTheirFile) {
  EXPECT_THAT(error_of({folder_.path()}), HasSubstr("no truth.json in or below"));
  EXPECT_THAT(error_of({folder_.path() / "nowhere"}), HasSubstr("there is no folder"));
  const auto made = make("case", "dataset-unseeded");
  const auto file = made.folder / "truth.json";
  for (const char* text : {"", "{", "[]", "{\"schema_version\": 1}"}) {
    write_file(file, text);
    EXPECT_THAT(error_of({folder_.path()}), HasSubstr(file.string())) << text;
  }
  write_truth(made.folder, made.truth);
  auto later = nlohmann::json::parse(read_file(file));
  later["schema_version"] = 2;
  write_file(file, later.dump());
  EXPECT_THAT(error_of({folder_.path()}), HasSubstr("schema_version is 2"));
  write_truth(made.folder, made.truth);
  fs::copy(made.folder, folder_.path() / "again");
  EXPECT_THAT(error_of({folder_.path()}), HasSubstr("two cases are called case"));
}

TEST_F(Matrices, OurDetectorsAnswer) {
  const auto broken = make("broken", "dataset-unseeded", 8);
  const auto answer = ask_detectors(broken);
  ASSERT_EQ(answer.findings.size(), 1u);
  EXPECT_EQ(answer.findings[0].pitfall, "dataset-unseeded");
  EXPECT_EQ(judge(broken.truth, answer, {}), Cell::exact);
  EXPECT_EQ(ask_detectors(make("right", "")).state, Answer::State::answered);
  // Nothing in these traces tells of it.
  EXPECT_EQ(ask_detectors(make("other", "sum-not-mean")).state, Answer::State::not_triggered);
}

TEST_F(Matrices, OurDetectorsAreShownALevel) {
  const auto broken = make("broken", "dataset-unseeded", 8);
  EXPECT_EQ(level_needed("dataset-unseeded"), 2);
  EXPECT_EQ(level_needed("peer-dies"), 0);
  EXPECT_EQ(level_needed("no-such-pitfall"), 0);
  EXPECT_EQ(ask_detectors(broken, 2).findings.size(), 1u);
  for (const int level : {0, 1}) {
    const auto answer = ask_detectors(broken, level);
    EXPECT_TRUE(answer.findings.empty()) << level;
    EXPECT_EQ(answer.state, Answer::State::not_triggered) << level;
  }
  Matrix matrix{"detectors", {{broken.truth, ask_detectors(broken, 1)}}, {}, 1};
  EXPECT_THAT(to_text(matrix), HasSubstr("detectors, level 1\n"));
  EXPECT_EQ(nlohmann::json::parse(to_json(matrix)).at("level"), 1);
}

TEST_F(Matrices, AnyProgramAnswers) {
  const auto one = make("broken", "dataset-unseeded");
  const auto ask = [&](const std::string& text) { return ask_program(one, script(text), 20s); };
  const auto said =
      ask("echo '{\"findings\": [{\"pitfall\": \"x\", \"ranks\": [1], \"step\": 4, \"severity\": "
          "\"advice\"}]}'");
  EXPECT_EQ(said.state, Answer::State::answered);
  ASSERT_EQ(said.findings.size(), 1u);
  EXPECT_EQ(said.findings[0].pitfall, "x");
  EXPECT_EQ(said.findings[0].ranks, std::vector<int>{1});
  EXPECT_EQ(said.findings[0].step, 4);
  EXPECT_TRUE(said.findings[0].advice);
  EXPECT_EQ(ask("echo '{\"findings\": []}'; exit 1").state, Answer::State::answered);
  EXPECT_EQ(ask("echo '{\"not_triggered\": true}'").state, Answer::State::not_triggered);
}

TEST_F(Matrices, AProgramThatDoesNotAnswerIsAnError) {
  const auto one = make("broken", "dataset-unseeded");
  for (const char* text : {"true", "echo no JSON", "exit 3", "no-such-program", "kill -9 $$",
                           "echo '{\"findings\": [{\"slug\": \"x\"}]}'", "echo '{\"findings\": 3}'",
                           "echo '[]'", "echo '{}'"})
    EXPECT_EQ(ask_program(one, script(text), 20s).state, Answer::State::error) << text;
  EXPECT_EQ(ask_program(one, script("sleep 60"), 1s).state, Answer::State::error);
}

// It sees the traces, and neither the truth nor a name that tells.
TEST_F(Matrices, AProgramIsAskedBlind) {
  const auto one = make("dataset-unseeded/broken", "dataset-unseeded");
  write_file(one.folder / "rank_0.outcome.json", "{}");
  const auto seen = ask_program(one,
                                script("cd \"$1\"\nfiles=$(find . -type f | sort)\n"
                                       "echo '{\"findings\": [{\"pitfall\": \"'$1 $files'\"}]}'"),
                                20s);
  ASSERT_EQ(seen.findings.size(), 1u);
  const auto& text = seen.findings[0].pitfall;
  EXPECT_THAT(text, HasSubstr(" ./rank_0.trace ./rank_1.trace"));
  for (const char* telling : {"truth", "unseeded", "broken", "outcome"})
    EXPECT_EQ(text.find(telling), std::string::npos) << text;
}

TEST_F(Matrices, AreReportedAsTextAndAsJson) {
  const auto broken = make("broken", "dataset-unseeded", 8), right = make("right", "");
  Matrix matrix{"detectors", {}, families_of({broken, right})};
  for (const auto& one : {broken, right}) matrix.runs.push_back({one.truth, ask_detectors(one)});
  const auto text = to_text(matrix);
  EXPECT_THAT(text, HasSubstr("exact           broken: dataset-unseeded\n"));
  EXPECT_THAT(text, HasSubstr("clean           right\n"));
  EXPECT_THAT(text, HasSubstr("exact           1 of 1 = 1.000 [0.207, 1.000]"));
  const auto json = nlohmann::json::parse(to_json(matrix));
  EXPECT_EQ(json.at("runs").at(0).at("cell"), "exact");
  EXPECT_EQ(json.at("totals").at("cells").at("clean"), 1);
  EXPECT_EQ(json.at("totals").at("false_alarms").at("trials"), 1);
  EXPECT_TRUE(json.at("totals").at("median_steps").is_null());
}

}  // namespace
}  // namespace lockstep::matrix
