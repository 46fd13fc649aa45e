// What a program over NCCL says on a machine where it cannot work, before anything starts; and that a program over
// Gloo asks no driver. The driver is one that the test has written (tests/support/fake_cuda.cpp), so that it is the
// same on every machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/file.h>
#include <lockstep/launch/launch.h>

#include <set>
#include <sstream>

#include "../support/program.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run;

using Environment = std::map<std::string, std::string>;

Environment machine(const std::string& gpus, const std::string& cuda = "13000") {
  return {
      {"LD_LIBRARY_PATH", FAKE_DRIVER}, {"LOCKSTEP_FAKE_GPUS", gpus}, {"LOCKSTEP_FAKE_CUDA", cuda}};
}

testing::Finished lesson(const Environment& environment, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {LESSON, "--variant", "correct", "--backend", "nccl"});
  return run(arguments, environment);
}

// One line, whatever width it was filled to.
std::string joined(const std::string& text) {
  std::string line;
  for (const char c : text)
    if (c != '\n' && c != ' ')
      line += c;
    else if (!line.empty() && line.back() != ' ')
      line += ' ';
  return line;
}

TEST(NcclLesson, IsSkippedWithTheReason) {
  const auto few = lesson(machine("1:90"), {});
  EXPECT_EQ(few.exit_code, 77);
  EXPECT_THAT(joined(few.err), AllOf(HasSubstr("2 ranks on this machine need a GPU each"),
                                     HasSubstr("sees 1 GPU, and local rank 1 is to use cuda:1"),
                                     HasSubstr("--share-gpu")));
  EXPECT_EQ(few.out, "") << "something has started";

  const auto old = lesson(machine("1:90 2:90", "12040"), {});
  EXPECT_EQ(old.exit_code, 77);
  EXPECT_THAT(joined(old.err), HasSubstr("the NVIDIA driver runs CUDA up to 12.4"));

  const auto twice = lesson(machine("1:90 1:90"), {});
  EXPECT_EQ(twice.exit_code, 77);
  EXPECT_THAT(joined(twice.err), HasSubstr("local ranks 0 and 1 are to use the same GPU"));

  const auto none = lesson(machine(""), {"--share-gpu"});
  EXPECT_EQ(none.exit_code, 77);
  EXPECT_THAT(joined(none.err), HasSubstr("the NVIDIA driver is there, and sees no GPU"));
}

TEST(NcclLesson, SharesGpusOverNcclOnly) {
  const auto finished = run({LESSON, "--share-gpu"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.err, HasSubstr("--share-gpu is for --backend nccl"));
}

// A fault that shows where each rank has a GPU of its own is tried where each has one, whatever may be shared.
TEST(NcclLesson, LeavesOutAVariantOnlyWhereRanksShare) {
  const auto said = [](const std::string& gpus) {
    const auto finished = run({CHECKPOINT_LESSON, "--variant", "load-without-map-location",
                               "--backend", "nccl", "--share-gpu"},
                              machine(gpus));
    return joined(finished.out + finished.err);
  };
  const auto reason = HasSubstr("shows where each rank has a GPU of its own");
  EXPECT_THAT(said("1:90"), reason);
  EXPECT_THAT(said("1:90 2:90"), Not(reason));  // pretended ones: it starts, and fails
}

// Rank 0 of two, the only one that comes: a program of the user's own, which another launcher has started.
testing::Finished rank_zero(const std::filesystem::path& folder, Environment environment) {
  environment.merge(machine("1:90"));
  environment.merge(Environment{{"RANK", "0"},
                                {"WORLD_SIZE", "2"},
                                {"LOCAL_RANK", "0"},
                                {"LOCKSTEP_STORE", "file://" + (folder / "store").string()},
                                {"LOCKSTEP_ERROR_FILE", folder / "error.json"},
                                {"LOCKSTEP_FAULT_BACKEND", "nccl"}});
  return run({GLOO_RANK, "init"}, environment);
}

TEST(NcclProgram, RefusesBeforeTheRanksMeet) {
  const TemporaryFolder folder("lockstep-test");
  const auto finished = rank_zero(folder.path(), {{"LOCKSTEP_FAULT_TIMEOUT_MS", "20000"}});
  EXPECT_EQ(finished.exit_code, 3);
  EXPECT_THAT(finished.err, HasSubstr("local rank 1 is to use cuda:1"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "store"));
}

// The header's version is held against that of the library which is loaded, not of the one PyTorch was compiled with.
TEST(NcclProgram, RefusesAnOlderNcclThanItsHeader) {
  const TemporaryFolder folder("lockstep-test");
  auto environment = testing::preloading(FAKE_NCCL, FAKE_DRIVER);
  environment.insert({{"LOCKSTEP_FAULT_TIMEOUT_MS", "1000"},
                      {"LOCKSTEP_FAULT_LOCAL_RANK", "0"},
                      {"LOCKSTEP_FAKE_NCCL", "21800"}});
  const auto finished = rank_zero(folder.path(), environment);
  EXPECT_EQ(finished.exit_code, 3);
  EXPECT_THAT(finished.err, HasSubstr("NCCL 2.18.0 is loaded, and this is built for NCCL "));
}

TEST(NcclProgram, NamesTheRankThatDoesNotCome) {
  const TemporaryFolder folder("lockstep-test");
  const auto finished = rank_zero(
      folder.path(), {{"LOCKSTEP_FAULT_TIMEOUT_MS", "1000"}, {"LOCKSTEP_FAULT_LOCAL_RANK", "0"}});
  EXPECT_EQ(finished.exit_code, 3);
  EXPECT_THAT(finished.err, AllOf(HasSubstr("init_process_group failed (timeout 1000 ms)"),
                                  HasSubstr("not there: rank 1.")));
}

// Each rank says cuda:0 of what it sees, as where every process has a CUDA_VISIBLE_DEVICES of its own: that it is
// one GPU shows when they meet.
TEST(NcclProgram, RefusesOneGpuForTwoRanks) {
  const TemporaryFolder folder("lockstep-test");
  launch::LaunchOptions job;
  job.command = {GLOO_RANK, "init"};
  job.world_size = 2;
  job.folder = folder.path();
  job.environment = machine("7:90");
  job.environment.merge(Environment{{"LOCKSTEP_FAULT_BACKEND", "nccl"},
                                    {"LOCKSTEP_FAULT_LOCAL_RANK", "0"},
                                    {"LOCKSTEP_FAULT_TIMEOUT_MS", "20000"}});
  const auto result = launch::launch(job);
  for (const auto& rank : result.ranks)
    EXPECT_THAT(
        rank.error,
        HasSubstr("ranks 0 and 1 have the same GPU, GPU-07070707-0707-0707-0707-0707070707"))
        << result.summary();
}

// The libraries that the dynamic linker looked for, in every process that was executed. Ranks that go on in a fork of
// their launcher have its libraries.
std::vector<std::set<std::string>> libraries(const std::vector<std::string>& command,
                                             Environment environment = {}) {
  const TemporaryFolder folder("lockstep-test");
  environment["LD_DEBUG"] = "libs";
  environment["LD_DEBUG_OUTPUT"] = folder.path() / "linker";
  run(command, environment);
  std::vector<std::set<std::string>> processes;
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    std::istringstream log(read_file(file.path()));
    std::set<std::string> names;
    const std::string mark = "find library=";
    for (std::string line; std::getline(log, line);)
      if (const auto at = line.find(mark); at != std::string::npos)
        names.insert(
            line.substr(at + mark.size(), line.find(' ', at + mark.size()) - at - mark.size()));
    if (names.count("libtorch_cpu.so") > 0) processes.push_back(names);
  }
  return processes;
}

TEST(GlooLesson, LooksForNothingOfCudas) {
  const TemporaryFolder folder("lockstep-test");
  const auto launcher = libraries({LESSON, "--variant", "correct"});
  const auto rank = libraries({LESSON, "--variant", "correct", "--folder", folder.path()},
                              {{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(launcher.size(), 1);
  EXPECT_EQ(rank.size(), 1);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "rank_0.trace")) << "it has trained";
  for (const char* name : {"libtorch_cuda.so", "libc10_cuda.so", "libcuda.so.1",
                           "libnvidia-ml.so.1", "libnccl.so.2"}) {
    EXPECT_THAT(launcher, Each(Not(Contains(name)))) << name;
    EXPECT_THAT(rank, Each(Not(Contains(name)))) << name;
  }
  // The test sees what is looked for.
  EXPECT_THAT(
      libraries({LESSON, "--variant", "correct", "--backend", "nccl", "--world-size", "16"}),
      Contains(Contains("libcuda.so.1")));
}

}  // namespace
}  // namespace lockstep
