#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/launch.h>

#include <charconv>

namespace lockstep::launch {
namespace {

// The names under which one kind of launcher says where a process stands.
struct Names {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};
constexpr Names kTorchrun{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kSlurm{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr};
constexpr Names kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                         "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};

[[noreturn]] void malformed_tasks(const std::string& text) {
  throw UsageError(
      "the environment variable SLURM_STEP_TASKS_PER_NODE must look like 2(x3),1, and is \"" +
      text + "\"");
}

int leading_int(std::string_view& text, const std::string& whole) {
  int number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < 1) malformed_tasks(whole);
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return number;
}

bool skip(std::string_view& text, std::string_view token) {
  if (!text.starts_with(token)) return false;
  text.remove_prefix(token.size());
  return true;
}

// Slurm's run-length list of tasks per node, "2(x3),1" for 2, 2, 2, 1: the entry of `node`.
int tasks_of_node(const std::string& list, int node) {
  std::string_view rest = list;
  int first = 0;
  do {
    const int tasks = leading_int(rest, list);
    int nodes = 1;
    if (skip(rest, "(x")) {
      nodes = leading_int(rest, list);
      if (!skip(rest, ")")) malformed_tasks(list);
    }
    if (node < first + nodes) return tasks;
    first += nodes;
  } while (skip(rest, ","));
  malformed_tasks(list);
}

std::optional<int> slurm_local_world_size() {
  const auto list = environment("SLURM_STEP_TASKS_PER_NODE");
  if (!list) return environment_int("SLURM_NTASKS_PER_NODE");
  return tasks_of_node(*list, environment_int("SLURM_NODEID").value_or(0));
}

void check_range(const char* name, int value, int low, int high) {
  if (value < low || value > high)
    throw UsageError("the environment variable " + std::string(name) + " is " +
                     std::to_string(value) + ", and must be from " + std::to_string(low) + " to " +
                     std::to_string(high));
}

std::optional<Placement> placement_in(const Names& names) {
  const auto rank = environment_int(names.rank);
  if (!rank) return std::nullopt;
  const auto world_size = environment_int(names.world_size);
  // Slurm numbers a batch script too, which is where a launcher is called: only srun's tasks are
  // told the size of their step.
  if (!world_size && names.rank == kSlurm.rank) return std::nullopt;
  if (!world_size)
    throw UsageError("the environment variable " + std::string(names.rank) + " is set and " +
                     names.world_size +
                     " is not: set both for a rank, or neither for the launcher");
  check_range(names.world_size, *world_size, 1, 1'000'000);
  check_range(names.rank, *rank, 0, *world_size - 1);

  // Left out, they say that the whole job runs on this machine.
  const auto local_world_size = names.local_world_size != nullptr
                                    ? environment_int(names.local_world_size)
                                    : slurm_local_world_size();
  const auto local_rank = environment_int(names.local_rank);
  const Placement place{*rank, *world_size, local_rank.value_or(*rank),
                        local_world_size.value_or(*world_size)};
  if (names.local_world_size != nullptr)
    check_range(names.local_world_size, place.local_world_size, 1, *world_size);
  if (!local_rank && place.local_rank >= place.local_world_size)
    throw UsageError("the environment variable " + std::string(names.local_rank) +
                     " is not set, and rank " + std::to_string(*rank) + " cannot be one of the " +
                     std::to_string(place.local_world_size) + " on its machine: set it");
  check_range(names.local_rank, place.local_rank, 0, place.local_world_size - 1);
  return place;
}

}  // namespace

std::optional<Placement> placement_from_environment() {
  for (const Names& names : {kTorchrun, kSlurm, kOpenMpi})
    if (const auto place = placement_in(names)) return place;
  // Several processes that each took themselves for the only one would train apart and write the same files.
  if (environment_int(kTorchrun.world_size).value_or(1) != 1)
    throw UsageError(
        "the environment variable WORLD_SIZE is set and RANK is not: set both for a rank, or "
        "neither for the launcher");
  return std::nullopt;
}

}  // namespace lockstep::launch
