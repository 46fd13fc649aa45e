// Where a process stands in a job, as torchrun, Slurm and Open MPI say it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/launch.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace lockstep::launch {
namespace {

using Variables = std::map<std::string, std::string>;

// Exactly these variables of all that place a process, for as long as it lives.
class ScopedEnvironment {
 public:
  explicit ScopedEnvironment(const Variables& variables) {
    clear();
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  ~ScopedEnvironment() { clear(); }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  static void clear() {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS",
          "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE",
          "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
          "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"})
      unsetenv(name);
  }
};

// rank, world size, local rank, local world size; empty for the launcher.
std::vector<int> placement(const Variables& variables) {
  const ScopedEnvironment set(variables);
  const auto place = placement_from_environment();
  if (!place) return {};
  return {place->rank, place->world_size, place->local_rank, place->local_world_size};
}

const Variables kTorchrun{
    {"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}};
const Variables kSlurm{
    {"SLURM_PROCID", "6"},         {"SLURM_NTASKS", "16"},  // of the job; this step is of 7
    {"SLURM_STEP_NUM_TASKS", "7"}, {"SLURM_LOCALID", "0"},
    {"SLURM_NODEID", "3"},         {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

TEST(Placement, NoneWithoutARank) {
  EXPECT_EQ(placement({}), std::vector<int>());
  EXPECT_EQ(placement({{"RANK", ""}}), std::vector<int>());
}

TEST(Placement, EachLaunchersVariables) {
  EXPECT_EQ(placement(kTorchrun), (std::vector<int>{5, 8, 1, 4}));
  EXPECT_EQ(placement(kSlurm), (std::vector<int>{6, 7, 0, 1}));
  EXPECT_EQ(placement(kOpenMpi), (std::vector<int>{3, 4, 1, 2}));
}

// A batch script is no rank, though Slurm numbers it as one: it is where a launcher is called.
TEST(Placement, ASlurmBatchScriptIsNoRank) {
  const Variables batch{{"SLURM_PROCID", "0"},          {"SLURM_NTASKS", "8"},
                        {"SLURM_LOCALID", "0"},         {"SLURM_NODEID", "0"},
                        {"SLURM_NTASKS_PER_NODE", "4"}, {"SLURM_TASKS_PER_NODE", "4(x2)"}};
  EXPECT_EQ(placement(batch), std::vector<int>());
}

TEST(Placement, TorchrunInsideSlurmWins) {
  Variables both = kSlurm;
  both.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(placement(both), (std::vector<int>{5, 8, 1, 4}));
}

TEST(Placement, WithoutLocalVariablesAllRanksAreHere) {
  EXPECT_EQ(placement({{"RANK", "1"}, {"WORLD_SIZE", "3"}}), (std::vector<int>{1, 3, 1, 3}));
}

TEST(Placement, SlurmsTasksPerNode) {
  const auto tasks = [](const std::string& list, const std::string& node) {
    return placement(with(with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", list), "SLURM_NODEID", node))
        .at(3);
  };
  EXPECT_EQ(tasks("2(x3),1", "0"), 2);
  EXPECT_EQ(tasks("2(x3),1", "2"), 2);
  EXPECT_EQ(tasks("2(x3),1", "3"), 1);
  EXPECT_EQ(tasks("4", "0"), 4);
  for (const char* bad : {"x", "2(x", "2(x3", "0", "2(x3),"}) {
    const auto list = with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", bad);
    EXPECT_THROW(placement(list), UsageError) << bad;
  }
}

TEST(Placement, AWorldWithoutARankIsRefused) {
  try {
    placement({{"WORLD_SIZE", "2"}});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("WORLD_SIZE is set and RANK is not"));
  }
  EXPECT_EQ(placement({{"WORLD_SIZE", "1"}}), std::vector<int>());
  Variables of_slurm = kSlurm;  // whose batch scripts export it
  of_slurm["WORLD_SIZE"] = "8";
  EXPECT_EQ(placement(of_slurm), placement(kSlurm));
}

TEST(Placement, WhatIsMissingOnSeveralMachinesIsNamed) {
  try {
    placement({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "4"}});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("LOCAL_RANK is not set"));
  }
}

TEST(Placement, WrongValuesAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> wrong{{"RANK", "8"},
                                                               {"RANK", "-1"},
                                                               {"RANK", "one"},
                                                               {"WORLD_SIZE", "0"},
                                                               {"WORLD_SIZE", ""},
                                                               {"LOCAL_RANK", "4"},
                                                               {"LOCAL_RANK", "-1"},
                                                               {"LOCAL_WORLD_SIZE", "9"},
                                                               {"LOCAL_WORLD_SIZE", "0"}};
  for (const auto& [name, value] : wrong) {
    try {
      placement(with(kTorchrun, name, value));
      ADD_FAILURE() << name << "=" << value << " was accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(name)) << value;
    }
  }
}

}  // namespace
}  // namespace lockstep::launch
