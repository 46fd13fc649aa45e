// The variants of lesson 17 that need a GPU, on a pretended one (tests/support/pretended_gpu): what their host does, the
// order of its calls, what it tells its probes, how it gives up, what oracles and detectors make of it, is run where
// there is no GPU. Nothing here has run on one: on real GPUs the variants are cases of lessons_test.cpp.
#include <gtest/gtest.h>
#include <lockstep/base/file.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "../support/program.h"
#include "expect_variant.h"
#include "variants.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;

constexpr int kMostRanks = 4;

struct Case {
  LessonVariant wanted;
  int world_size = 0;
};
void PrintTo(const Case& each, std::ostream* out) {
  *out << each.wanted.name << " on " << each.world_size;
}

// Variants whose fault shows with one rank, too.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& wanted : all_variants("17_nccl_and_streams")) {
    const int fewest = wanted.broken ? wanted.min_world_size : 2;
    for (int ranks = fewest; wanted.needs_gpu && ranks <= kMostRanks; ++ranks)
      all.push_back({wanted, ranks});
  }
  return all;
}

LessonVariant variant_named(const std::string& name) {
  for (const auto& wanted : all_variants("17_nccl_and_streams"))
    if (wanted.needs_gpu && wanted.name == name) return wanted;
  throw std::runtime_error("no variant that needs a GPU is named " + name);
}

class PretendedGpu : public ::testing::Test {
 protected:
  // The report of a variant on so many GPUs.
  json run_variant(const LessonVariant& wanted, int world_size, int gpus,
                   const std::vector<std::string>& more = {}, const std::string& fails = "") {
    here_ = folder_.path() / wanted.name;
    std::filesystem::create_directory(here_);
    const auto file = here_ / "report.json";
    std::string words;
    for (int gpu = 1; gpu <= gpus; ++gpu) words += std::to_string(gpu) + ":90 ";
    std::vector<std::string> command{LOCKSTEP_LESSONS_FOLDER "/" + wanted.lesson,
                                     "--variant",
                                     wanted.name,
                                     "--world-size",
                                     std::to_string(world_size),
                                     "--timeout",
                                     "40",
                                     "--json",
                                     file.string()};
    command.insert(command.end(), more.begin(), more.end());
    auto environment = preloading(LOCKSTEP_PRETENDED_GPU, LOCKSTEP_FAKE_DRIVER);
    environment.insert({{"LOCKSTEP_FAKE_GPUS", words},
                        {"LOCKSTEP_PRETENDED_GPU_FOLDER", here_.string()},
                        {"LOCKSTEP_PRETENDED_GPU_FAILS", fails}});
    finished_ = run(command, environment);
    if (!std::filesystem::exists(file)) return {};
    return json::parse(read_file(file)).at("variants").at(0);
  }

  void expect_as_on_a_gpu(const LessonVariant& wanted, int world_size, const json& variant) {
    SCOPED_TRACE(finished_.out + finished_.err);
    ASSERT_FALSE(variant.is_null());
    expect_as_claimed(wanted, world_size, variant, finished_.exit_code);
    for (int rank = 0; rank < world_size; ++rank) expect_used_and_given_back(rank);
  }

  // That it was this library that answered; and that a rank, however it ended, has left nothing on the GPU.
  void expect_used_and_given_back(int rank) {
    const auto stem = "rank_" + std::to_string(rank);
    EXPECT_FALSE(std::filesystem::exists(here_ / (stem + ".refused")));
    std::ifstream file(here_ / (stem + ".used"));
    std::map<std::string, int> used;
    std::string what;
    for (int count = 0; file >> what >> count;) used[what] = count;
    ASSERT_FALSE(used.empty()) << stem << " used no pretended GPU, or did not end in order";
    for (const std::string left : {"streams", "events", "buffers", "communicators"})
      EXPECT_EQ(used.at(left), 0) << left << " of " << stem;
  }

  const TemporaryFolder folder_{"lockstep-pretended-gpu-test"};
  std::filesystem::path here_;
  Finished finished_;
};

class VariantOnPretendedGpu : public PretendedGpu, public ::testing::WithParamInterface<Case> {};

TEST_P(VariantOnPretendedGpu, IsJudgedAsOnARealOne) {
  const auto& [wanted, world_size] = GetParam();
  expect_as_on_a_gpu(wanted, world_size, run_variant(wanted, world_size, world_size));
}

INSTANTIATE_TEST_SUITE_P(Lesson17, VariantOnPretendedGpu, ::testing::ValuesIn(cases()),
                         [](const auto& each) {
                           return case_name(each.param.wanted) + "_on_" +
                                  std::to_string(each.param.world_size);
                         });

// Something fails while ranks wait for each other: the rank aborts its communicators, so that it can free its memory
// and say what failed; the launcher ends the others.
struct Failure {
  std::string name, variant, what, said;
};
void PrintTo(const Failure& failure, std::ostream* out) {
  *out << failure.what << " of " << failure.variant;
}
class FailureOnPretendedGpu : public PretendedGpu, public ::testing::WithParamInterface<Failure> {};

TEST_P(FailureOnPretendedGpu, EndsTheRankInOrderWithWhatFailed) {
  const auto& failure = GetParam();
  const auto variant = run_variant(variant_named(failure.variant), 2, 2, {}, failure.what);
  ASSERT_FALSE(variant.is_null());
  SCOPED_TRACE(finished_.out + finished_.err);
  EXPECT_EQ(variant.at("outcome"), "crash");
  const auto reason = unfilled(variant.at("reason").get<std::string>());
  EXPECT_NE(reason.find("rank 1 raised"), std::string::npos) << reason;
  EXPECT_NE(reason.find(failure.said), std::string::npos) << reason;
  expect_used_and_given_back(1);
}

INSTANTIATE_TEST_SUITE_P(
    Lesson17, FailureOnPretendedGpu,
    ::testing::Values(Failure{"OfItsFirstCollective", "correct-communicators", "1 ncclAllReduce 1",
                              "ncclAllReduce"},
                      Failure{"BesideAnother", "near-miss-waited-in-another-order",
                              "1 ncclAllReduce 4", "ncclAllReduce"},
                      Failure{"OfCuda", "near-miss-waited-in-another-order", "1 cudaEventRecord 3",
                              "cudaEventRecord"},
                      Failure{"OfAPeer", "correct-communicators", "1 peer 3",
                              "communicator A number 2"},
                      Failure{"OfAPeerBesideAnother", "near-miss-waited-in-another-order",
                              "1 peer 3", "communicator A number 2"},
                      Failure{"OfAPeerBetweenStreams", "correct-streams", "1 peer 2",
                              "communicator world number 2"}),
    [](const auto& each) { return each.param.name; });

// NCCL would refuse ranks with one GPU, if they did not tell it that they share.
TEST_F(PretendedGpu, MayBeShared) {
  for (const std::string name : {"correct-communicators", "wrong-stream"}) {
    const auto wanted = variant_named(name);
    expect_as_on_a_gpu(wanted, 2, run_variant(wanted, 2, 1, {"--backend", "nccl", "--share-gpu"}));
  }
}

TEST_F(PretendedGpu, IsNotEnoughForMoreRanks) {
  const auto variant = run_variant(variant_named("correct-streams"), 2, 1);
  ASSERT_FALSE(variant.is_null());
  EXPECT_EQ(variant.at("outcome"), "skipped");
  EXPECT_NE(variant.at("reason").get<std::string>().find("needs a GPU for each rank"),
            std::string::npos)
      << variant.at("reason");
}

}  // namespace
}  // namespace lockstep::testing
