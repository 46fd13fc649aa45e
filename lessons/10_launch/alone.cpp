// Lesson 10, part "alone": a process that nobody told its rank.
//
// Concept:  a launcher sets RANK and WORLD_SIZE for each process. Without them a program must not go on as if it
//           were the only one.
// Symptom:  none. W processes that ssh or a loop in a shell started train the same model on all of the data, each
//           alone. It takes as long as on one GPU, and all write the same checkpoint.
#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/launch.h>
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>
#include <unistd.h>

#include <set>
#include <utility>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;
constexpr std::int64_t kSamples = 96;

// Which of how many this process is.
launch::Placement placement_of(const Fault& fault) {
  if (fault("silent-single-process")) {
    // Not set? Then this is a run on one GPU.
    return {.rank = static_cast<int>(environment_int("RANK").value_or(0)),
            .world_size = static_cast<int>(environment_int("WORLD_SIZE").value_or(1))};
  } else if (fault("near-miss-sweep")) {
    return {.rank = 0, .world_size = 1};  // each is meant to be alone
  } else {
    const auto told = launch::placement_from_environment();
    if (!told) throw UsageError("RANK is not set: start this program with torchrun");
    return *told;
  }
}

void train(RankContext& context, const Fault& fault) {
  const auto placement = placement_of(fault);
  context.join(10 * context.patience());
  const auto data = fashion_mnist_or_synthetic(Split::train, kSamples);
  std::uint64_t seed = context.seed();
  if (fault("near-miss-sweep")) seed = static_cast<std::uint64_t>(getpid());  // each tries another
  const DistributedSampler sampler({.dataset_size = data.size(),
                                    .num_replicas = placement.world_size,
                                    .rank = placement.rank,
                                    .seed = seed});
  Trainer trainer(context, data);
  for (const auto& ids : sampler.batches(kBatch)) trainer.step(ids);
}

// Two processes that draw the same samples and lose the same have trained the same.
Measured different_trainings(const Outcomes& outcomes) {
  std::set<std::pair<std::vector<double>, std::vector<std::vector<std::int64_t>>>> trainings;
  for (const auto& outcome : outcomes) trainings.emplace(outcome.losses, outcome.ids.at("train"));
  return {.expected = static_cast<double>(outcomes.size()),
          .observed = static_cast<double>(trainings.size())};
}

}  // namespace

Part alone_part() {
  return {
      .name = "alone",
      .run = train,
      .broken = {{.slug = "silent-single-process",
                  .what = "started without a launcher, each process takes itself for rank 0 of 1",
                  .oracle = {"different trainings among the processes", different_trainings},
                  .alone = true}},
      .near_misses = {{.name = "near-miss-sweep",
                       .slug = "silent-single-process",
                       .naive_check = "several processes are each rank 0 of 1 at the same time",
                       .alone = true}},
      .participants = Participants::strangers};
}
