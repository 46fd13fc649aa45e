// Lesson 10, part "shards": how many ranks there are.
//
// Concept:  WORLD_SIZE is the number of ranks. A process sees the devices of its node, and on
//           several nodes they are fewer.
// Symptom:  none on one node. On k nodes each sample is drawn k times an epoch, which takes k times
//           as long; a learning rate scaled by the same number is k times too small.
//
// Nodes are simulated: two, with half of the ranks each where their number is even; 2 ranks are
// on the same node.
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;
constexpr std::int64_t kSamples = 96;  // for each rank

void train(RankContext& context, const Fault& fault) {
  const Node node(context);
  context.probes().tell(node.place());
  const auto data = fashion_mnist_or_synthetic(Split::train, kSamples * context.world_size());

  // The data set as this rank has it; a near miss: each node has its own part on its own disk.
  std::vector<std::int64_t> held = all_ids(data.size());
  int num_replicas = context.world_size(), rank = context.rank();
  if (fault("near-miss-data-a-node")) {
    const auto first = held.begin() + kSamples * node.number * node.devices;
    held = {first, first + kSamples * node.local_world_size};
    num_replicas = node.local_world_size;
    rank = node.local_rank;
  }
  if (fault("world-size-from-device-count")) {  // PITFALL world-size-from-device-count
    num_replicas = node.devices;                // as torch.cuda.device_count() gives it
    rank = node.local_rank;
  }

  const auto part = take(data, held);
  auto& probes = context.probes();
  probes.dataset("train", part.inputs, part.targets, held, data.size());
  probes.tell(trace::Shard{"train", num_replicas, rank});
  const DistributedSampler sampler({.dataset_size = part.size(),
                                    .num_replicas = num_replicas,
                                    .rank = rank,
                                    .seed = context.seed()});
  TracedTrainer trainer(context, data);
  trainer.begin_epoch(0);
  for (auto ids : sampler.batches(kBatch)) {
    for (auto& id : ids) id = held.at(static_cast<std::size_t>(id));
    trainer.step(ids);
  }
  trainer.end_epoch();
}

Measured drawn_again(const Outcomes& outcomes) {
  const auto samples = kSamples * static_cast<std::int64_t>(outcomes.size());
  double again = 0;
  for (const auto times : times_drawn(outcomes, "train", 0, samples))
    again += static_cast<double>(std::max<std::int64_t>(times - 1, 0));
  return {.expected = 0, .observed = again};
}

}  // namespace

Part shards_part() {
  return {.name = "shards",
          .run = train,
          .broken = {{.slug = "world-size-from-device-count",
                      .what = "the data are split by the devices of a node, on two nodes",
                      .oracle = {"samples that are drawn again in one epoch", drawn_again},
                      .min_world_size = 3}},
          .near_misses = {{.name = "near-miss-data-a-node",
                           .slug = "world-size-from-device-count",
                           .naive_check = "the sampler's num_replicas is not WORLD_SIZE"}}};
}
