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

// Into how many shards the data are split, and which is this rank's.
struct Shard {
  int num_replicas, rank;
};

// Deals that shard of the data, and tells the trace which it is.
DistributedSampler sampler_of(RankContext& context, const TensorData& data, const Shard& shard) {
  context.told().tell(trace::Shard{"train", shard.num_replicas, shard.rank});
  return DistributedSampler({.dataset_size = data.size(),
                             .num_replicas = shard.num_replicas,
                             .rank = shard.rank,
                             .seed = context.seed()});
}

// A near miss: each node has its own part of the data on its own disk.
TensorData part_on(const Node& node, const TensorData& all) {
  const auto ids = all_ids(all.size());
  const auto first = ids.begin() + kSamples * node.number * node.devices;
  const std::vector<std::int64_t> held(first, first + kSamples * node.local_world_size);
  auto part = rows_of(all, held);
  part.ids = held;
  part.global_size = all.size();
  return part;
}

Shard shard_of(const RankContext& context, const Node& node, const Fault& fault) {
  if (fault("world-size-from-device-count")) {
    // As torch.cuda.device_count() gives it: the devices of one node.
    return {.num_replicas = node.devices, .rank = node.local_rank};
  } else if (fault("near-miss-data-a-node")) {
    return {.num_replicas = node.local_world_size, .rank = node.local_rank};
  } else {
    return {.num_replicas = context.world_size(), .rank = context.rank()};
  }
}

void train(RankContext& context, const Fault& fault) {
  const Node node(context);
  tell_place(context, node.place());
  auto data = fashion_mnist_or_synthetic(Split::train, kSamples * context.world_size());

  if (fault("near-miss-data-a-node")) data = part_on(node, data);
  const auto sampler = sampler_of(context, data, shard_of(context, node, fault));
  Trainer trainer(context, data);
  for (const auto& ids : sampler.batches(kBatch)) trainer.step(ids);
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
