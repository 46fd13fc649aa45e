// What keeps NCCL from working, on made-up machines: each fault alone, and the machines that have none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/gpu/require_nccl.h>

namespace lockstep::gpu {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Gpu h200(const std::string& uuid) {
  return {.name = "NVIDIA H200", .uuid = uuid, .bytes = 149ULL << 30, .major = 9, .minor = 0};
}

// A machine on which all is well, with so many GPUs.
Facts machine(int gpus) {
  Facts facts;
  facts.driver.cuda_version = 13000;
  for (int i = 0; i < gpus; ++i) facts.driver.gpus.push_back(h200("GPU-" + std::to_string(i)));
  facts.built_with = {.nccl = 22809, .cuda = 13000};
  facts.nccl_library = 22809;
  return facts;
}

std::vector<Problem> of(const Facts& facts, int ranks, bool share_gpu = false) {
  const int gpus = static_cast<int>(facts.driver.gpus.size());
  return problems(facts, local_ranks(ranks, gpus, share_gpu), share_gpu);
}

auto says(const std::string& what, const std::string& to_do) {
  return AllOf(::testing::Field(&Problem::what, HasSubstr(what)),
               ::testing::Field(&Problem::to_do, HasSubstr(to_do)));
}

TEST(RequireNccl, IsContentWithAGpuForEachRank) {
  EXPECT_THAT(of(machine(1), 1), IsEmpty());
  EXPECT_THAT(of(machine(2), 2), IsEmpty());
  EXPECT_THAT(of(machine(8), 3), IsEmpty());
  EXPECT_NO_THROW(require_nccl(machine(2), local_ranks(2, 2, false), false));
}

TEST(RequireNccl, NamesAMissingDriver) {
  auto facts = machine(0);
  facts.driver.missing = "libcuda.so.1: cannot open shared object file";
  facts.driver.cuda_version = 0;
  EXPECT_THAT(of(facts, 2), ElementsAre(says("the NVIDIA driver cannot be asked: libcuda.so.1: "
                                             "cannot open",
                                             "docker run --gpus all")));
}

TEST(RequireNccl, NamesAMachineWithoutAGpu) {
  EXPECT_THAT(of(machine(0), 1), ElementsAre(says("sees no GPU", "nvidia-smi")));
  auto hidden = machine(0);
  hidden.visible_devices = "";
  EXPECT_THAT(of(hidden, 1),
              ElementsAre(says("CUDA_VISIBLE_DEVICES= hides every GPU", "unset it")));
}

TEST(RequireNccl, NamesTheFirstRankWithoutAGpu) {
  EXPECT_THAT(of(machine(2), 4),
              ElementsAre(says("sees 2 GPUs, and local rank 2 is to use cuda:2", "--share-gpu")));
  auto narrowed = machine(1);
  narrowed.visible_devices = "5";
  EXPECT_THAT(of(narrowed, 2),
              ElementsAre(says("sees 1 GPU, of those that CUDA_VISIBLE_DEVICES=5 lets it see, and "
                               "local rank 1 is to use cuda:1",
                               "InitOptions::local_rank = 0")));
  // A process that sees its own GPU only, and says so.
  EXPECT_THAT(problems(narrowed, {{.local_rank = 1, .device = 0}}, false), IsEmpty());
}

TEST(RequireNccl, NamesTwoRanksWithOneGpu) {
  EXPECT_THAT(problems(machine(2), {{0, 1}, {1, 1}}, false),
              ElementsAre(says("local ranks 0 and 1 are to use the same GPU, NVIDIA H200 (GPU-1)",
                               "cuda:LOCAL_RANK")));
  auto twice = machine(3);  // two indices, one GPU
  twice.driver.gpus[2].uuid = "GPU-0";
  EXPECT_THAT(of(twice, 3), ElementsAre(says("local ranks 0 and 2 are to use the same GPU", "")));
  twice.driver.gpus[0].uuid = twice.driver.gpus[2].uuid = "";  // a driver that does not say
  EXPECT_THAT(of(twice, 3), IsEmpty());
}

TEST(RequireNccl, LetsRanksShareWhereTheyAreToldTo) {
  EXPECT_THAT(of(machine(1), 4, true), IsEmpty());
  EXPECT_THAT(of(machine(2), 5, true), IsEmpty());
  EXPECT_THAT(of(machine(0), 2, true), ElementsAre(says("sees no GPU", "")));
  EXPECT_EQ(device_of(3, 2, true), 1);
  EXPECT_EQ(device_of(3, 2, false), 3);
  EXPECT_THAT(sharing_text(4, 1), HasSubstr("4 ranks share 1 GPU (share_gpu)"));
}

TEST(RequireNccl, NamesADriverForAnOlderCuda) {
  auto facts = machine(1);
  facts.driver.cuda_version = 12080;
  EXPECT_THAT(of(facts, 1),
              ElementsAre(says("the NVIDIA driver runs CUDA up to 12.8, and this is built for CUDA "
                               "13.0",
                               "a driver for CUDA 13 or newer, or a LibTorch for CUDA 12")));
  facts.driver.cuda_version = 13000;
  facts.built_with.cuda = 13020;  // minor versions do not count
  EXPECT_THAT(of(facts, 1), IsEmpty());
  facts.driver.cuda_version = 14000;
  EXPECT_THAT(of(facts, 1), IsEmpty());
}

TEST(RequireNccl, NamesAnOlderNcclThanItsHeader) {
  auto facts = machine(1);
  facts.built_with.nccl = 23003;
  EXPECT_THAT(
      of(facts, 1),
      ElementsAre(says("NCCL 2.28.9 is loaded, and this is built for NCCL 2.30.3, which has "
                       "more than it",
                       "install NCCL 2.30 or newer")));
  facts.built_with.nccl = 22803;
  EXPECT_THAT(of(facts, 1), IsEmpty()) << "another patch";
  facts.nccl_library = 23003;
  EXPECT_THAT(of(facts, 1), IsEmpty()) << "a newer library";
  facts.nccl_library = 30000;
  EXPECT_THAT(of(facts, 1), ElementsAre(says("NCCL 3.0.0 is loaded, and this is built for NCCL "
                                             "2.28.3, another major version",
                                             "")));
  facts.nccl_library = 2708;  // as versions were written before 2.9
  EXPECT_THAT(of(facts, 1), ElementsAre(says("NCCL 2.7.8 is loaded", "")));
  facts.nccl_library = 0;
  EXPECT_THAT(of(facts, 1), IsEmpty()) << "not known";
}

TEST(RequireNccl, NamesAGpuThatCuda13HasNoCodeFor) {
  auto facts = machine(2);
  facts.driver.gpus[1].major = 7;
  facts.driver.gpus[1].name = "Tesla V100";
  EXPECT_THAT(of(facts, 1), IsEmpty()) << "nobody uses it";
  EXPECT_THAT(of(facts, 2),
              ElementsAre(says("Tesla V100 (cuda:1) has compute capability 7.0", "CUDA 12")));
  facts.driver.gpus[1].minor = 5;
  EXPECT_THAT(of(facts, 2), IsEmpty());
  facts.driver.gpus[1].minor = 0;
  facts.built_with.cuda = 12080;
  EXPECT_THAT(of(facts, 2), IsEmpty());
}

TEST(RequireNccl, TellsOfEveryProblemAtOnce) {
  auto facts = machine(1);
  facts.driver.cuda_version = 12040;
  facts.nccl_library = 22703;
  try {
    require_nccl(facts, local_ranks(2, 1, false), false);
    FAIL() << "nothing was thrown";
  } catch (const UnavailableError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("backend nccl: 2 ranks on this machine need a GPU each; "),
                      HasSubstr("NCCL 2.27.3 is loaded"), HasSubstr("CUDA up to 12.4"),
                      HasSubstr("local rank 1 is to use cuda:1"), HasSubstr("backend gloo")));
  }
}

}  // namespace
}  // namespace lockstep::gpu
