// Lesson 06: BatchNorm under data parallelism. It normalizes by the batch as a whole, and keeps
// statistics that the reduction of gradients does not keep equal.
//
//   by_hand.cpp      the batch of all ranks, written out: which mean, over how many
//   buffers.cpp      running statistics: every rank collects its own, rank 0's are evaluated
//   modes.cpp        train() and eval(), which all ranks must switch together
//   two_views.cpp    two forwards before one backward, and a broadcast in between
//   conversion.cpp   from BatchNorm to SyncBatchNorm, before DDP takes the parameters
//
// Run:  ./lockstep run 06_sync_batch_norm
//       06_sync_batch_norm --variant unequal-counts-in-sync --world-size 4
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/reference.h>

#include "parts.h"

// Tanh, for the oracles: where rounding moves a ReLU's input across zero, a sample's gradient is in
// one of the two that are compared and not in the other.
torch::nn::Sequential batch_norm_mlp() {
  return torch::nn::Sequential(torch::nn::Linear(784, 64), torch::nn::BatchNorm1d(64),
                               torch::nn::Tanh(), torch::nn::Linear(64, 10));
}

torch::nn::Sequential batch_norm_mlp(const std::vector<at::Tensor>& weights) {
  auto net = batch_norm_mlp();
  lockstep::copy_parameters(weights, net->parameters());
  return net;
}

std::vector<std::int64_t> own_batch(const lockstep::RankContext& context, std::int64_t step,
                                    std::int64_t batch) {
  return lockstep::global_batch(step * context.world_size() + context.rank(), batch);
}

int main(int argc, char** argv) {
  return lockstep::lesson_main(
      argc, argv,
      {.name = "06_sync_batch_norm",
       .title = "SyncBatchNorm: one batch, one set of statistics, over all ranks",
       .parts = {by_hand_part(), buffers_part(), modes_part(), two_views_part(),
                 conversion_part()}});
}
