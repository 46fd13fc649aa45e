// Every variant of every lesson, run as a user runs it: a case each, judged as expect_variant.h says.
//
// LOCKSTEP_TEST_WORLD_SIZE and LOCKSTEP_TEST_SEED choose another world size (default: the lesson's
// own) and seed; the full tier rotates them.
#include <gtest/gtest.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/file.h>
#include <lockstep/gpu/driver.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "../support/checkout.h"
#include "expect_variant.h"
#include "variants.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;

std::string program(const std::string& lesson) {
  return std::string(LOCKSTEP_LESSONS_FOLDER) + "/" + lesson;
}

class Variant : public ::testing::TestWithParam<LessonVariant> {
 protected:
  // The report of this one variant, and the exit code.
  json run_variant(int world_size, int* exit_code) {
    const TemporaryFolder folder("lockstep-lessons-test");
    const auto file = folder.path() / "report.json";
    const auto seed = std::to_string(environment_int("LOCKSTEP_TEST_SEED").value_or(0));
    std::vector<std::string> command{program(GetParam().lesson),
                                     "--variant",
                                     GetParam().name,
                                     "--world-size",
                                     std::to_string(world_size),
                                     "--seed",
                                     seed,
                                     "--json",
                                     file.string()};
    if (const int gpus = gpu::gpus_here(); GetParam().needs_gpu && gpus > 0 && gpus < world_size)
      command.insert(command.end(), {"--backend", "nccl", "--share-gpu"});
    const auto finished = run(command);
    *exit_code = finished.exit_code;
    SCOPED_TRACE(finished.err);
    if (!std::filesystem::exists(file)) {
      ADD_FAILURE() << "no report; exit code " << finished.exit_code << "\n" << finished.err;
      return {};
    }
    said_ = finished.out;
    return json::parse(read_file(file)).at("variants").at(0);
  }
  std::string said_;
};

TEST_P(Variant, IsWhatItClaims) {
  const auto& wanted = GetParam();
  const int world_size = environment_int("LOCKSTEP_TEST_WORLD_SIZE").value_or(wanted.world_size());
  if (world_size < wanted.min_world_size)
    GTEST_SKIP() << wanted.name << " shows on " << wanted.min_world_size << " ranks or more";
  int exit_code = -1;
  const json variant = run_variant(world_size, &exit_code);
  ASSERT_FALSE(variant.is_null());
  SCOPED_TRACE(said_);
  if (variant.at("outcome") == "skipped" && (world_size == 1 || wanted.needs_gpu))
    GTEST_SKIP() << variant.at("reason").get<std::string>();
  expect_as_claimed(wanted, world_size, variant, exit_code);
}

INSTANTIATE_TEST_SUITE_P(Lessons, Variant, ::testing::ValuesIn(all_variants(LOCKSTEP_LESSONS)),
                         [](const auto& each) { return case_name(each.param); });

// A lesson whose run trains no reference of its own: its batches are gone through again.
TEST(Reports, HoldWhatOneProcessLoses) {
  const TemporaryFolder folder("lockstep-lessons-test");
  const auto file = folder.path() / "report.json";
  const auto finished =
      run({program("05_set_epoch"), "--variant", "correct", "--json", file.string()});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const auto variant = json::parse(read_file(file)).at("variants").at(0);
  EXPECT_EQ(variant.at("reference_losses").size(), variant.at("losses").at(0).size());
}

TEST(CommandLine, NamesWhatIsWrong) {
  const auto no_such = run({program("05_set_epoch"), "--variant", "no-such-variant"});
  EXPECT_EQ(no_such.exit_code, 2);
  EXPECT_NE(no_such.err.find("no-such-variant"), std::string::npos) << no_such.err;
  EXPECT_NE(no_such.err.find("missing-set-epoch"), std::string::npos)
      << "it lists the variants there are";
  const auto too_many = run({program("05_set_epoch"), "--world-size", "17"});
  EXPECT_EQ(too_many.exit_code, 2);
  EXPECT_NE(too_many.err.find("17"), std::string::npos) << too_many.err;
  for (const std::string seed : {"-1", "99999999999999999999", "x"})
    EXPECT_EQ(run({program("05_set_epoch"), "--seed", seed, "--describe"}).exit_code, 2) << seed;
  const auto folder =
      run({program("05_set_epoch"), "--variant", "correct", "--json", "/proc/none/report.json"});
  EXPECT_EQ(folder.exit_code, 2);
  EXPECT_NE(folder.err.find("/proc/none"), std::string::npos) << folder.err;
}

TEST(CommandLine, SkipsWhatCannotShow) {
  const auto finished =
      run({program("04_sampler"), "--variant", "padding-overruns", "--world-size", "2"});
  EXPECT_EQ(finished.exit_code, 77);
  EXPECT_NE(finished.out.find("3 ranks or more"), std::string::npos) << finished.out;
}

TEST(CommandLine, EndsWhatTakesTooLong) {
  const auto finished =
      run({program("01_single_device"), "--variant", "correct", "--full", "--timeout", "1"});
  EXPECT_EQ(finished.exit_code, 124) << finished.err;
  EXPECT_NE(finished.out.find("hang"), std::string::npos) << finished.out;
}

// Reserved, it is refused; only promised, its first touch kills. Either way it has one name.
TEST(SharedMemory, ThatIsOnlyPromisedKillsAndIsNamed) {
  const TemporaryFolder folder("lockstep-lessons-test");
  const auto file = folder.path() / "report.json";
  const auto finished = run(
      {program("17_nccl_and_streams"), "--variant", "small-shared-memory", "--json", file.string()},
      preloading(LOCKSTEP_PROMISED_MEMORY));
  const auto variant = json::parse(read_file(file)).at("variants").at(0);
  if (variant.at("outcome") == "skipped") GTEST_SKIP() << variant.at("reason").get<std::string>();
  EXPECT_NE(finished.out.find("SIGBUS"), std::string::npos) << finished.out;
  EXPECT_EQ(named(variant, "violation"), std::set<std::string>{"small-shared-memory"});
  EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
}

json pictures_of(const std::string& lesson, const std::string& wanted) {
  const TemporaryFolder folder("lockstep-pictures-test");
  const auto file = folder.path() / "report.json";
  const auto finished = run({program(lesson), "--variant", wanted, "--json", file.string()});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  if (!python().empty()) {
    const auto fits = validate("lesson", {file});
    EXPECT_EQ(fits.exit_code, 0) << fits.out << fits.err;
  }
  return json::parse(read_file(file)).at("variants").at(0).at("pictures");
}

std::set<int> ids_of(const json& pass) {
  std::set<int> ids;
  for (const auto& rank : pass.at("ranks"))
    for (const auto& id : rank) ids.insert(id.get<int>());
  return ids;
}

TEST(Report, ShowsWhoDrewWhichSamples) {
  const auto right = pictures_of("05_set_epoch", "correct").at("owners");
  const auto broken = pictures_of("05_set_epoch", "missing-set-epoch").at("owners");
  ASSERT_EQ(right.size(), 2U);
  EXPECT_NE(right[0].at("ranks"), right[1].at("ranks"));
  EXPECT_EQ(broken[0].at("ranks"), broken[1].at("ranks")) << "the same order again";
  const auto shown =
      (right[0].at("samples").get<std::size_t>() - 1) / right[0].at("every").get<std::size_t>() + 1;
  EXPECT_EQ(ids_of(right[0]).size(), shown) << "every so manieth of the whole data set";
}

TEST(Report, ShowsReplicasThatPart) {
  const auto pictures = pictures_of("03_ddp", "correct-by-hand");
  const auto& right = pictures.at("divergence");
  const auto broken = pictures_of("03_ddp", "no-gradient-sync").at("divergence");
  ASSERT_GE(right.size(), 4U);
  for (const auto& point : right) EXPECT_LE(point.at("distance"), pictures.at("tolerance"));
  EXPECT_EQ(broken.front().at("step"), -1);
  EXPECT_EQ(broken.front().at("distance"), 0.0);
  EXPECT_GT(broken.back().at("distance"), 1000 * pictures.at("tolerance").get<double>());
}

TEST(Report, ShowsWhereRanksStalled) {
  const auto timeline =
      pictures_of("09_hanging_collective", "rank-conditional-collective").at("timeline");
  ASSERT_TRUE(timeline.at("first_difference").is_object());
  const auto& first = timeline.at("first_difference");
  int entered = 0;
  for (const auto& call : timeline.at("calls"))
    entered += call.at("sequence") == first.at("sequence") && call.at("group") == first.at("group");
  EXPECT_GE(entered, 1) << "it is among the calls shown";
}

// What passes in silence otherwise is refused on every rank, with both sides.
TEST(CommandLine, ChecksEachCollectiveBeforeItRuns) {
  const auto mixed =
      run({program("09_hanging_collective"), "--variant", "dtype-mismatch", "--check"});
  EXPECT_EQ(mixed.exit_code, 1) << "it ends otherwise than it is meant to";
  EXPECT_NE(mixed.out.find("ended-otherwise"), std::string::npos) << mixed.out;
  const auto said = unfilled(mixed.out);
  EXPECT_NE(said.find("rank 1: allreduce sum int32 [10]"), std::string::npos) << mixed.out;
  EXPECT_NE(said.find("rank 0: allreduce sum float32 [10]"), std::string::npos) << mixed.out;
  const auto right = run({program("03_ddp"), "--variant", "correct", "--check"});
  EXPECT_EQ(right.exit_code, 0) << right.err;
}

// The same program as a rank of another launcher. Rank 0 judges, and its exit code is the job's.
class Torchrun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (python().empty()) GTEST_SKIP() << "no Python with torch was configured";
  }
  Finished torchrun(const std::string& lesson, const std::string& wanted,
                    std::vector<std::string> more = {}) {
    std::vector<std::string> command{python(),
                                     "-m",
                                     "torch.distributed.run",
                                     "--nproc-per-node",
                                     "2",
                                     "--rdzv-backend",
                                     "c10d",
                                     "--rdzv-endpoint",
                                     "127.0.0.1:0",
                                     "--log-dir",
                                     (folder_.path() / "torchrun").string()};
    command.insert(command.end(), more.begin(), more.end());
    const std::vector<std::string> program_and_options{
        "--no-python", program(lesson), "--variant",
        wanted,        "--folder",      (folder_.path() / "run").string(),
        "--json",      file_.string()};
    command.insert(command.end(), program_and_options.begin(), program_and_options.end());
    return run(command);
  }
  json variant() const { return json::parse(read_file(file_)).at("variants").at(0); }

  const TemporaryFolder folder_{"lockstep-torchrun-test"};
  const std::filesystem::path file_ = folder_.path() / "report.json";
};

TEST_F(Torchrun, RunsAndJudgesALesson) {
  const auto finished = torchrun("05_set_epoch", "epoch-differs-by-rank");
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(variant().at("verdict"), "as-expected") << variant().dump();
  EXPECT_EQ(named(variant(), "violation"), std::set<std::string>{"epoch-differs-by-rank"});
  EXPECT_EQ(variant().at("losses").size(), 2U) << "both ranks' losses";
}

// A rank is killed, torchrun starts both again, and they go on behind the newest checkpoint.
TEST_F(Torchrun, RestartsAJobThatGoesOn) {
  const auto finished = torchrun("18_elastic_restart", "correct", {"--max-restarts", "1"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(variant().at("verdict"), "as-expected") << variant().dump();
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "run" / "attempt_1" / "rank_1.trace"));
}

TEST_F(Torchrun, RestartsAJobThatDoesNotAndNamesIt) {
  const auto finished =
      torchrun("18_elastic_restart", "restart-without-resume", {"--max-restarts", "1"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(named(variant(), "violation"), std::set<std::string>{"restart-without-resume"});
}

TEST_F(Torchrun, EndsAtTheFirstFailureByDefault) {
  const auto finished = torchrun("18_elastic_restart", "correct");
  EXPECT_EQ(finished.exit_code, 1) << finished.err;
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "run" / "attempt_1"));
}

}  // namespace
}  // namespace lockstep::testing
