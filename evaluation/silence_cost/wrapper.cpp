// Training through DistributedDataParallel: what stands around the wrapper.
#include <lockstep/record/recorder.h>

#include "silence.h"

namespace lockstep::silence {
namespace {

double train_wrapped(const Job& job, const Fault& fault) {
  record::intent({.global_batch = job.batch * job.world_size(), .loss_reduction = "mean"});
  auto net = make_model();
  const bool thaws = fault("frozen-after-wrapping");
  // Wrapped while the first layer is frozen, and thawed afterwards: the silent half of this pitfall.
  for (auto& parameter : net->fc1->parameters()) parameter.requires_grad_(!thaws);
  DistributedDataParallel<Mlp> model(net, job.group);
  for (auto& parameter : net->fc1->parameters()) parameter.requires_grad_(true);

  auto to_move = net->parameters();
  if (fault("optimizer-built-on-other-parameters")) to_move = net->clone()->parameters();
  DecayingSgd optimizer(to_move, job.rate, job.updates());

  for_updates(job.updates(), shuffled(job), [&](const Ids& ids) {
    const auto batch = take(job.train, ids);
    if (!fault("gradients-not-zeroed")) net->zero_grad();
    at::Tensor outputs;
    if (fault("forward-bypasses-wrapper"))
      outputs = net->forward(batch.inputs);
    else
      outputs = model(batch.inputs);
    auto loss = mean_loss(outputs, batch.targets);
    if (fault("double-average")) loss = loss / job.world_size();
    if (fault("loss-all-reduced-in-place")) {
      all_reduce(*job.group, loss);
      loss = loss / job.world_size();
    }
    loss.backward();
    optimizer.step();
  });
  return accuracy(net, job.test);
}

}  // namespace

std::vector<Setting> wrapper_settings() {
  return {{"wrapper",
           {"gradients-not-zeroed", "forward-bypasses-wrapper", "double-average",
            "loss-all-reduced-in-place", "frozen-after-wrapping",
            "optimizer-built-on-other-parameters"},
           train_wrapped}};
}

}  // namespace lockstep::silence
