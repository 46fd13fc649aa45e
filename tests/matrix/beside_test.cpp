// PyTorch's own means beside a matrix, from a table that is made by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/matrix/report.h>

#include <nlohmann/json.hpp>

#include "../support/checkout.h"
#include "../support/refusal.h"

namespace lockstep::matrix {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Cells = std::map<std::string, std::pair<std::string, std::string>>;  // broken, correct

json case_of(const std::string& slug, const Cells& said) {
  json cells = json::object();
  for (const auto& [checker, cell] : said)
    cells[checker] = {{"broken", {{"cell", cell.first}, {"evidence", ""}}},
                      {"correct", {{"cell", cell.second}, {"evidence", ""}}}};
  return {
      {"slug", slug}, {"family", "03"}, {"proved", true}, {"together", "missed"}, {"cells", cells}};
}

json table() {
  return {{"schema_version", 1},
          {"date", "2026-01-02"},
          {"torch", "2.11.0"},
          {"backend", "gloo"},
          {"world_size", 2},
          {"checkers", {"plain", "detail", "lockstep"}},
          {"cases",
           {case_of("sum-not-mean", {{"plain", {"missed", "clean"}},
                                     {"detail", {"error", "error"}},
                                     {"lockstep", {"exact", "clean"}}}),
            case_of("no-sharding", {{"plain", {"slug-only", "false-alarm"}},
                                    {"detail", {"exact", "clean"}},
                                    {"lockstep", {"exact", "clean"}}}),
            case_of("slow-rank", {{"plain", {"family-only", "clean"}},
                                  {"detail", {"skipped", "not-triggered"}},
                                  {"lockstep", {"exact", "clean"}}}),
            case_of("lr-not-scaled", {{"plain", {"exact", "clean"}},
                                      {"detail", {"exact", "clean"}},
                                      {"lockstep", {"exact", "clean"}}})}}};
}

Scored run(const std::string& name, const std::string& pitfall, const std::string& found) {
  Scored scored{{name, "03", pitfall, {}, std::nullopt, true}, {}};
  if (!found.empty()) scored.answer.findings.push_back({found, false, {0}, 1});
  return scored;
}

class Beside : public ::testing::Test {
 protected:
  matrix::Beside read(const std::string& text) const {
    write_file(file_, text);
    return read_beside(file_);
  }
  std::string error_of(const json& text) const {
    return refusal([&] { read(text.dump()); });
  }
  // Two runs of sum-not-mean, one of which is only noticed; slow-rank missed; lr-not-scaled has no run here.
  Matrix scored() const {
    Matrix matrix{
        "detectors",
        {run("a", "sum-not-mean", "sum-not-mean"), run("b", "sum-not-mean", "replicas-diverged"),
         run("c", "no-sharding", "no-sharding"), run("d", "slow-rank", ""), run("e", "", ""),
         run("f", "", "slow-rank"), run("g", "", "")},
        {{"sum-not-mean", "03"}, {"no-sharding", "03"}, {"slow-rank", "03"}}};
    matrix.beside = read(table().dump());
    return matrix;
  }
  TemporaryFolder folder_{"lockstep-beside"};
  std::filesystem::path file_ = folder_.path() / "side_by_side.json";
};

TEST_F(Beside, ColumnsAreThoseOfTheFileButOurOwn) {
  const auto beside = read(table().dump());
  EXPECT_EQ(beside.means, (std::vector<std::string>{"plain", "detail"}));
  EXPECT_EQ(beside.pitfalls.size(), 4u);
  EXPECT_EQ(beside.pitfalls.at("sum-not-mean").at("detail").broken, Cell::error);
  EXPECT_EQ(beside.pitfalls.at("no-sharding").at("plain").correct, Cell::false_alarm);
}

TEST_F(Beside, EachPitfallIsNamedNoticedOrPassedOver) {
  const auto matrix = scored();
  const auto compared = compare(matrix.runs, matrix.families, *matrix.beside);
  const auto said = [&](const std::string& pitfall) { return compared.rows.at(pitfall); };
  using Row = std::vector<std::optional<Said>>;
  EXPECT_EQ(said("sum-not-mean"), Row({Said::noticed, Said::silent, Said::error}));
  EXPECT_EQ(said("no-sharding"), Row({Said::named, Said::named, Said::named}));
  EXPECT_EQ(said("slow-rank"), Row({Said::silent, Said::noticed, std::nullopt}));
  EXPECT_EQ(said("lr-not-scaled"), Row({std::nullopt, Said::named, Said::named}));
}

// Over the three pitfalls that were asked of both.
TEST_F(Beside, SharesAreOfWhatBothWereAsked) {
  const auto matrix = scored();
  const auto compared = compare(matrix.runs, matrix.families, *matrix.beside);
  ASSERT_EQ(compared.columns, (std::vector<std::string>{"ours", "plain", "detail"}));
  const auto shares = [&](std::size_t column) {
    const auto& total = compared.totals.at(column);
    return std::vector<std::pair<int, int>>{
        {total.named.successes, total.named.trials},
        {total.noticed.successes, total.noticed.trials},
        {total.false_alarms.successes, total.false_alarms.trials}};
  };
  using Shares = std::vector<std::pair<int, int>>;
  EXPECT_EQ(shares(0), Shares({{1, 3}, {2, 3}, {1, 3}}));
  EXPECT_EQ(shares(1), Shares({{1, 3}, {2, 3}, {1, 3}}));
  EXPECT_EQ(shares(2), Shares({{1, 2}, {1, 2}, {0, 1}}));  // one was not run, one failed
}

TEST_F(Beside, ARunThatCannotShowIsNotAsked) {
  auto matrix = scored();
  for (auto& run : matrix.runs) run.truth.applicable = false;
  const auto compared = compare(matrix.runs, matrix.families, *matrix.beside);
  EXPECT_EQ(compared.rows.at("sum-not-mean").front(), std::nullopt);
  for (const auto& total : compared.totals) EXPECT_EQ(total.named.trials, 0);
}

TEST_F(Beside, IsPrintedAndWritten) {
  const auto matrix = scored();
  const auto text = to_text(matrix);
  EXPECT_THAT(text, HasSubstr("PyTorch 2.11.0, gloo, 2 ranks, 2026-01-02"));
  EXPECT_THAT(text, HasSubstr("sum-not-mean   noticed     silent      error\n"));
  EXPECT_THAT(text, HasSubstr("lr-not-scaled  -           named       named\n"));
  EXPECT_THAT(text, HasSubstr("  ours        1 of 3 = 0.333 [0.061, 0.792]    2 of 3"));
  const auto written = json::parse(to_json(matrix));
  const auto& beside = written.at("beside");
  EXPECT_EQ(beside.at("source"), "PyTorch 2.11.0, gloo, 2 ranks, 2026-01-02");
  EXPECT_EQ(beside.at("pitfalls").at("slow-rank"),
            json({{"ours", "silent"}, {"plain", "noticed"}, {"detail", nullptr}}));
  EXPECT_EQ(beside.at("totals").at("detail").at("named").at("trials"), 2);
  auto alone = matrix;
  alone.beside.reset();
  EXPECT_FALSE(json::parse(to_json(alone)).contains("beside"));
}

TEST_F(Beside, TheMatrixFitsItsSchema) {
  if (testing::python().empty()) GTEST_SKIP() << "no Python was found beside LibTorch";
  const auto file = folder_.path() / "matrix.json";
  auto matrix = scored();
  for (const bool with : {true, false}) {
    if (!with) matrix.beside.reset();
    write_file(file, to_json(matrix));
    const auto checked = testing::validate("matrix", {file});
    EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
  }
}

TEST_F(Beside, ABadFileIsNamedWithWhatIsWrong) {
  const auto is = [this](const std::string& words) {
    return AllOf(HasSubstr(file_.string()), HasSubstr(words),
                 HasSubstr("evaluation/pytorch_means/side_by_side.py"));
  };
  const auto spoilt = [](const std::string& pointer, const json& value) {
    auto text = table();
    text[json::json_pointer(pointer)] = value;
    return text;
  };
  EXPECT_THROW(read_beside(folder_.path() / "nowhere.json"), Error);
  EXPECT_THROW(read("{"), Error);
  EXPECT_THAT(error_of(json::array()), is("schema_version"));
  EXPECT_THAT(error_of(json::object()), is("schema_version"));
  EXPECT_THAT(error_of(spoilt("/schema_version", 2)), is("schema_version is 2"));
  EXPECT_THAT(error_of(spoilt("/checkers", {"lockstep"})), is("no means but our own"));
  EXPECT_THAT(error_of(spoilt("/checkers", {"plain", "info"})), is("info"));
  EXPECT_THAT(error_of(spoilt("/cases", json::array())), is("no case"));
  EXPECT_THAT(error_of(spoilt("/cases/1/slug", "slow-rank")), is("two cases are called slow-rank"));
  EXPECT_THAT(error_of(spoilt("/cases/1/cells/plain/broken/cell", "right")),
              is("\"right\" is no cell"));
  EXPECT_THAT(error_of(spoilt("/cases/0/cells/plain", 3)), is("plain"));
  auto text = table();
  text.erase("date");
  EXPECT_THAT(error_of(text), is("date"));
}

}  // namespace
}  // namespace lockstep::matrix
