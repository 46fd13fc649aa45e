// Lesson 10: the launch. A launcher starts processes and tells each where it stands, in a few variables; all
// else the program does itself: it takes a device, finds the others, splits the data, and takes its leave.
//
//   devices.cpp    which device is a rank's: RANK, LOCAL_RANK, and what CUDA_VISIBLE_DEVICES shows
//   shards.cpp     how many ranks there are: WORLD_SIZE is no node's number of devices
//   threads.cpp    how many threads a rank may use
//   meeting.cpp    how ranks find each other: port, interface, and who leaves last
//   spawning.cpp   who starts the ranks: the launcher or the program, never both
//   preparing.cpp  who prepares the data: one rank, and the others wait
//
// Run:  ./lockstep run 10_launch
//       10_launch --variant rank-as-device-index --world-size 4
#include <lockstep/lesson/training.h>

#include "parts.h"

using namespace lockstep;

void train_a_little(RankContext& context) {
  constexpr std::int64_t kBatch = 16;  // per rank
  const auto data = fashion_mnist_or_synthetic(Split::train, 2 * kBatch * context.world_size());
  Trainer trainer(context, data);
  trainer.begin_epoch(0);
  for (std::int64_t step = 0; step < 2; ++step) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < kBatch; ++i)
      ids.push_back((step * context.world_size() + context.rank()) * kBatch + i);
    trainer.step(ids);
  }
  trainer.end_epoch();
  add_figure(context, "trained", 1);
}

Measured ranks_that_trained(const Outcomes& outcomes) {
  double trained = 0;
  for (const auto& outcome : outcomes)
    if (const auto found = outcome.figures.find("trained"); found != outcome.figures.end())
      trained += static_cast<double>(found->second.size());
  return {.expected = static_cast<double>(outcomes.size()), .observed = trained};
}

int main(int argc, char** argv) {
  return lesson_main(argc, argv,
                     {.name = "10_launch",
                      .title = "The launch: where a rank stands, and what is its own",
                      .parts = {devices_part(), shards_part(), threads_part(), meeting_part(),
                                spawning_part(), preparing_part()},
                      .default_world_size = 4});
}
