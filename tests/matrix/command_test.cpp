// lockstep matrix, as a user calls it: its exit codes, and PyTorch's own means beside the scores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/file.h>

#include <nlohmann/json.hpp>

#include "../support/checkout.h"
#include "case.h"

namespace lockstep::matrix {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class MatrixCommand : public ::testing::Test {
 protected:
  Case make(const std::string& name, const CaseOptions& options = {}) const {
    return make_case(cases(), name, options);
  }
  fs::path cases() const { return folder_.path() / "cases"; }
  testing::Finished matrix(std::vector<std::string> options = {}) const {
    options.insert(options.begin(), {LOCKSTEP_COURSE, "matrix", cases().string()});
    return testing::run(options);
  }
  // One exit code for a --checker that runs `text`, with the folder of traces as $0.
  testing::Finished checked(const std::string& text) const {
    return matrix({"--checker", text + " #"});
  }
  TemporaryFolder folder_{"lockstep-matrix-command"};
};

TEST_F(MatrixCommand, ExitsWithZeroWhereEveryCellIsAsItShouldBe) {
  make("broken", {.pitfall = "dataset-unseeded", .other = 8});
  make("right");
  // Neither is asked for: it cannot show; and nothing in it can be looked at.
  make("impossible", {.pitfall = "sum-not-mean", .applicable = false});
  make("dark", {.with_data = false});
  const auto done = matrix();
  EXPECT_EQ(done.exit_code, 0) << done.out << done.err;
  EXPECT_THAT(done.out, HasSubstr("1 healthy run could not be looked at"));
  EXPECT_EQ(done.err, "");
}

TEST_F(MatrixCommand, ExitsWithOneForEachCellThatIsNot) {
  const std::vector<std::pair<std::string, CaseOptions>> wrong{
      {"slug-only", {.pitfall = "dataset-unseeded", .other = 8, .ranks = {0}}},
      {"wrong-name", {.pitfall = "sum-not-mean", .other = 8}},
      {"missed", {.pitfall = "dataset-unseeded"}},
      {"not-triggered", {.pitfall = "sum-not-mean"}},
      {"false-alarm", {.other = 8}}};
  for (const auto& [cell, options] : wrong) {
    fs::remove_all(cases());
    make("right");
    make("case", options);
    const auto done = matrix();
    EXPECT_EQ(done.exit_code, 1) << cell << done.out << done.err;
    EXPECT_THAT(done.out, HasSubstr(cell + std::string(16 - cell.size(), ' ') + "case")) << cell;
  }
  fs::remove_all(cases());
  make("right");
  const auto error = checked("echo no JSON");
  EXPECT_EQ(error.exit_code, 1) << error.out << error.err;
  EXPECT_THAT(error.out, HasSubstr("error           right"));
  EXPECT_EQ(checked("echo '{\"findings\": []}'").exit_code, 0);
}

TEST_F(MatrixCommand, ExitsWithThreeWhereNothingCanBeScored) {
  const auto expect = [this](const std::vector<std::string>& options, const std::string& words) {
    const auto done = matrix(options);
    EXPECT_EQ(done.exit_code, 3) << words << done.out << done.err;
    EXPECT_THAT(testing::unfilled(done.err), HasSubstr(words));
    return done.out;
  };
  EXPECT_EQ(expect({}, "there is no folder"), "");
  fs::create_directories(cases());
  EXPECT_EQ(expect({}, "no truth.json in or below"), "");
  // A pass of nothing is no pass.
  make("impossible", {.pitfall = "sum-not-mean", .applicable = false});
  make("dark", {.with_data = false});
  expect({}, "nothing was scored");
  make("right");
  EXPECT_EQ(matrix().exit_code, 0);
  for (const char* command : {"no-such-checker", "/etc", "./nowhere/checker --fast"})
    EXPECT_EQ(expect({"--checker", command}, "the checker could not be started"), "");
  write_file(cases() / "right" / "rank_0.trace", "no trace");
  EXPECT_EQ(expect({}, "rank_0.trace"), "");
  fs::remove(cases() / "right" / "rank_0.trace");
  fs::remove(cases() / "right" / "rank_1.trace");
  expect({"--checker", "true"}, (cases() / "right").string() + ": a truth.json and no trace");
  write_file(cases() / "right" / "truth.json", "{");
  EXPECT_EQ(expect({}, "truth.json"), "");
}

TEST_F(MatrixCommand, ExitsWithTwoForWrongUse) {
  make("right");
  EXPECT_EQ(matrix({"--level", "3"}).exit_code, 2);
  EXPECT_EQ(matrix({"--checker", ""}).exit_code, 2);
  EXPECT_EQ(matrix({"--checker", "true", "--level", "1"}).exit_code, 2);
  fs::copy(cases() / "right", cases() / "again");
  EXPECT_EQ(matrix().exit_code, 2);
}

// The table that is committed, and one that is none.
TEST_F(MatrixCommand, PutsPyTorchsOwnMeansBeside) {
  make("broken", {.pitfall = "dataset-unseeded", .other = 8});
  const auto measured = testing::in_checkout("reports/results/side_by_side.json").string();
  const auto file = (folder_.path() / "matrix.json").string();
  const auto done = matrix({"--beside", measured, "--json", file});
  EXPECT_EQ(done.exit_code, 0) << done.out << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("exact           broken"), HasSubstr("flight")));
  const auto beside = json::parse(read_file(file)).at("beside");
  EXPECT_GE(beside.at("pitfalls").size(), 25u);
  const auto& row = beside.at("pitfalls").at("dataset-unseeded");
  EXPECT_EQ(row.at("ours"), "named");
  for (const char* means : {"plain", "info", "detail", "flight", "barrier", "loss-curve"})
    EXPECT_TRUE(row.at(means).is_string()) << means;
  EXPECT_EQ(row.at("plain"), "silent");
  EXPECT_EQ(beside.at("totals").at("plain").at("named").at("trials"), 1);
  for (const std::string& bad : {file, measured + ".none"}) {
    const auto refused = matrix({"--beside", bad});
    EXPECT_EQ(refused.exit_code, 3) << refused.err;
    EXPECT_THAT(testing::unfilled(refused.err), HasSubstr(bad));
    EXPECT_EQ(refused.out, "");
  }
}

}  // namespace
}  // namespace lockstep::matrix
