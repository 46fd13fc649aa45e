// Data parallelism by hand: broadcast, one all-reduce of all gradients, divide.
#include <lockstep/record/recorder.h>
#include <lockstep/train/seeding.h>

#include "silence.h"

namespace lockstep::silence {
namespace {

// The sum of the ranks' gradients, or what a fault makes of it.
at::Tensor reduce(const Job& job, const Fault& fault, const at::Tensor& own) {
  const bool is_last = job.rank() + 1 == job.world_size();
  auto sum = own.clone();
  if (fault("dtype-mismatch")) {  // as many bytes, read as other numbers
    sum = own.to(is_last ? at::kBFloat16 : at::kHalf);
    all_reduce(*job.group, sum);
    return sum.to(at::kFloat);
  }
  if (fault("async-work-not-waited")) {
    // The seam: rank 0 reads before any other rank has begun, so every time it reads its own gradient.
    if (job.rank() != 0) barrier(*job.seam);
    std::vector<at::Tensor> tensors{sum};
    const auto work = job.group->allreduce(tensors);
    if (job.rank() != 0) work->wait();
    const auto read = sum.clone();
    record::async_result("gradient", "used", read);
    if (job.rank() == 0) {
      barrier(*job.seam);
      work->wait();
    }
    record::async_result("gradient", "waited", sum);
    return read;
  }
  auto op = c10d::ReduceOp::SUM;
  if (fault("reduce-op-mismatch") && is_last) op = c10d::ReduceOp::PRODUCT;
  all_reduce(*job.group, sum, op);
  return sum;
}

double train_by_hand(const Job& job, const Fault& fault) {
  record::intent({.global_batch = job.batch * job.world_size(), .loss_reduction = "mean"});
  torch::manual_seed(rank_seed(job.seed, job.rank()));
  auto net = make_model();
  if (!fault("no-initial-broadcast")) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) broadcast(*job.group, parameter);
  }
  DecayingSgd optimizer(net->parameters(), job.rate, job.updates());
  for_updates(job.updates(), shuffled(job), [&](const Ids& ids) {
    const auto batch = take(job.train, ids);
    net->zero_grad();
    mean_loss(net->forward(batch.inputs), batch.targets).backward();
    if (!fault("no-gradient-sync")) {
      auto gradient = reduce(job, fault, flat_gradients(*net));
      if (!fault("sum-not-mean")) gradient /= job.world_size();
      set_gradients(*net, gradient);
    }
    optimizer.step();
  });
  return accuracy(net, job.test);
}

}  // namespace

std::vector<Setting> by_hand_settings() {
  return {{"by-hand",
           {"no-initial-broadcast", "no-gradient-sync", "sum-not-mean", "dtype-mismatch",
            "reduce-op-mismatch", "async-work-not-waited"},
           train_by_hand}};
}

}  // namespace lockstep::silence
