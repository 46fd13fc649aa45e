// Lesson 10, part "spawning": who starts the ranks.
//
// Concept:  a launched program is a rank already: the environment says which. A program that starts
//           its own ranks (mp.spawn, or a launcher inside it) must look there first, and start none
//           if it is one.
// Symptom:  W x W processes. Here each of the W jobs has a rendezvous file of its own, so W jobs
//           train the same on all of the data. With one MASTER_PORT for all, they get in each
//           other's way.
#include <lockstep/base/environment.h>
#include <lockstep/launch/launch.h>

#include <chrono>
#include <filesystem>

#include "parts.h"

namespace {

using namespace lockstep;
namespace fs = std::filesystem;

constexpr const char* kSpawned = "LOCKSTEP_LESSON_SPAWNED";

// Starts processes of this program from within a rank, told that they are ranks of a job of that
// size, and waits for them. (Torch's threads do not get in the way here: between fork and exec
// nothing of theirs is touched.)
void start(RankContext& context, int world_size, const std::string& what) {
  context.told().tell(trace::Spawn{world_size, world_size});
  const auto folder = context.folder() / ("of_rank_" + std::to_string(context.rank()));
  const auto of_launch = folder / "launch";
  fs::create_directories(of_launch);
  fs::permissions(of_launch, fs::perms::owner_all);
  const auto result =
      launch::launch({.command = {fs::read_symlink("/proc/self/exe"), what, "--folder", folder,
                                  "--seed", std::to_string(context.seed())},
                      .world_size = world_size,
                      .environment = {{kSpawned, "1"}},
                      .folder = of_launch,
                      .deadline = std::chrono::minutes(2)});  // 16 ranks start 256 processes
  if (!result.completed()) throw Error("the processes of this rank failed: " + result.summary());
  // What they trained counts with this rank.
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().string().ends_with(".outcome.json")) add_figure(context, "trained", 1);
}

void train(RankContext& context, const Fault& fault) {
  if (fault("spawn-under-launcher") && !environment(kSpawned))
    return start(context, context.world_size(), "--variant=spawn-under-launcher");
  if (fault("near-miss-helper-process")) start(context, 1, "--describe");
  context.join(10 * context.patience());
  train_a_little(context);
}

}  // namespace

Part spawning_part() {
  return {.name = "spawning",
          .run = train,
          .broken = {{.slug = "spawn-under-launcher",
                      .what = "every rank starts as many ranks again",
                      .oracle = {"processes that trained", ranks_that_trained}}},
          .near_misses = {{.name = "near-miss-helper-process",
                           .slug = "spawn-under-launcher",
                           .naive_check = "launched ranks start processes"}},
          .participants = Participants::strangers};
}
