// What is set in the environment for NCCL, and what is the user's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/gpu/nccl_environment.h>

namespace lockstep::gpu {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

using Variables = std::map<std::string, std::string>;

Variables set_for(const NcclJob& job, const Variables& users = {}) {
  return nccl_environment(job, [&](const std::string& name) {
    const auto found = users.find(name);
    return found == users.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(NcclEnvironment, KeepsTheProcessAndEndsTheOperation) {
  EXPECT_THAT(set_for({.one_machine = false, .nccl_library = 22809}),
              UnorderedElementsAre(Pair("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2"),
                                   Pair("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0"),
                                   Pair("TORCH_NCCL_DUMP_ON_TIMEOUT", "0"),
                                   Pair("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0")));
}

TEST(NcclEnvironment, StaysOnTheMachineWhereAllRanksAre) {
  EXPECT_THAT(set_for({.one_machine = true}), Contains(Pair("NCCL_SOCKET_IFNAME", "lo")));
  EXPECT_THAT(set_for({.one_machine = true}, {{"NCCL_SOCKET_IFNAME", "eth0"}}),
              Not(Contains(Key("NCCL_SOCKET_IFNAME"))));
}

TEST(NcclEnvironment, LeavesWhatTheUserHasSet) {
  const auto kept = set_for({}, {{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}});
  EXPECT_THAT(kept, Not(Contains(Key("TORCH_NCCL_ASYNC_ERROR_HANDLING"))));
  EXPECT_THAT(kept, Contains(Key("TORCH_NCCL_RETHROW_CUDA_ERRORS")));
}

TEST(NcclEnvironment, WaitsForADumpOnlyWhereOneIsWanted) {
  const auto waits = Not(Contains(Key("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC")));
  for (const char* yes : {"1", "true", "Y"})
    EXPECT_THAT(set_for({}, {{"TORCH_NCCL_DUMP_ON_TIMEOUT", yes}}), waits) << yes;
  for (const char* no : {"0", "false", "N"})
    EXPECT_THAT(set_for({}, {{"TORCH_NCCL_DUMP_ON_TIMEOUT", no}}), Not(waits)) << no;
}

TEST(NcclEnvironment, MakesEachSharingRankAHost) {
  const auto first = set_for({.rank = 0, .share_gpu = true, .nccl_library = 22809});
  const auto second = set_for({.rank = 1, .share_gpu = true, .nccl_library = 22809});
  EXPECT_NE(first.at("NCCL_HOSTID"), second.at("NCCL_HOSTID"));
  EXPECT_THAT(first,
              AllOf(Contains(Pair("NCCL_NET", "Socket")), Contains(Pair("NCCL_MNNVL_ENABLE", "0")),
                    Not(Contains(Key("NCCL_MULTI_RANK_GPU_ENABLE")))));
  const auto many_machines =
      set_for({.one_machine = false, .share_gpu = true, .nccl_library = 22809});
  EXPECT_THAT(many_machines, Not(Contains(Key("NCCL_NET"))));
  EXPECT_THAT(set_for({.nccl_library = 22809}), Not(Contains(Key("NCCL_HOSTID"))));
}

TEST(NcclEnvironment, SharesOnlyWhereThereAreMoreRanksThanGpus) {
  const auto hosts = Contains(Key("NCCL_HOSTID"));
  const NcclJob job{.share_gpu = true, .nccl_library = 22809, .local_ranks = 2, .gpus = 2};
  EXPECT_THAT(set_for(job), AllOf(Not(hosts), Not(Contains(Key("NCCL_NET"))),
                                  Not(Contains(Key("NCCL_MNNVL_ENABLE")))));
  auto crowded = job;
  crowded.local_ranks = 3;
  EXPECT_THAT(set_for(crowded), hosts);
  crowded.share_gpu = false;
  EXPECT_THAT(set_for(crowded), Not(hosts));
}

TEST(NcclEnvironment, LeavesSharingToANcclThatHasIt) {
  const auto variables = set_for({.rank = 1, .share_gpu = true, .nccl_library = 23000});
  EXPECT_THAT(variables, AllOf(Contains(Pair("NCCL_MULTI_RANK_GPU_ENABLE", "1")),
                               Not(Contains(Key("NCCL_HOSTID")))));
}

}  // namespace
}  // namespace lockstep::gpu
