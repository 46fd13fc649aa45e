// Lesson 06, part "conversion": from BatchNorm to SyncBatchNorm, in a model that exists.
//
// Concept:  DDP reduces the parameters that it finds when it is constructed. A layer that is put in
//           later brings parameters that are never reduced.
// Symptom:  each rank updates the new layer by its own gradient, and the replicas drift apart.
//           (Without find_unused_parameters DDP waits for the old layer's gradients, and the second
//           forward raises that the last reduction was not finished.)
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/sync_batch_norm.h>

#include <optional>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 8;
constexpr double kLearningRate = 0.1;

// LibTorch has no conversion, so this is what one writes: a new layer, with the old one's numbers.
void replace_batch_norm(torch::nn::Sequential& net, const ProcessGroupPtr& group) {
  const auto& old = *net->ptr(1)->as<torch::nn::BatchNorm1dImpl>();
  SyncBatchNorm layer(old.options, group);
  copy_parameters(old, *layer);
  *(net->begin() + 1) = torch::nn::AnyModule(layer);  // what forward runs
  net->replace_module("1", layer);                    // what parameters() lists
}

void train(RankContext& context, const Fault& fault) {
  const std::int64_t global = kBatch * context.world_size();
  const auto data = fashion_mnist_or_synthetic(Split::train, global * kSteps);
  auto net = batch_norm_mlp();
  net->to(context.device());
  auto reference = batch_norm_mlp();  // one process, torch's BatchNorm, the global batch
  copy_parameters(*net, *reference);

  std::optional<DistributedDataParallel<torch::nn::Sequential>> model;
  const auto wrap = [&] {
    model.emplace(net, context.group(), DdpOptions{.find_unused_parameters = true});
  };
  // A near miss: late too, but this conversion puts the same tensors into the new layer.
  const bool same_tensors = fault("near-miss-converted-in-place");
  if (same_tensors || fault("sync-bn-after-wrapping")) {  // PITFALL sync-bn-after-wrapping
    wrap();
    if (same_tensors)
      convert_sync_batchnorm(*net, context.group());
    else
      replace_batch_norm(net, context.group());
  } else {
    replace_batch_norm(net, context.group());
    wrap();
  }
  auto& probes = context.probes();
  probes.intent({.global_batch = global, .loss_reduction = "mean"});
  probes.attach(*net);
  probes.engine("distributed_data_parallel");
  torch::optim::SGD optimizer(net->parameters(), kLearningRate);
  torch::optim::SGD reference_optimizer(reference->parameters(), kLearningRate);
  probes.start();
  Mean loss_of_epoch, loss_of_reference;

  for (int step = 0; step < kSteps; ++step) {
    const auto mine = own_batch(context, step, kBatch);
    probes.samples("train", mine);
    const auto batch = take(data, mine);
    net->zero_grad();
    const auto outputs = (*model)(batch.inputs.to(context.device()));
    probes.forward(net->is_training());
    const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                at::Reduction::None);
    const auto loss = each.mean();
    probes.loss(loss, each);
    loss.backward();
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    loss_of_epoch.add(each);

    auto everyone = all_ids(global);
    for (auto& id : everyone) id += step * global;
    const auto whole = take(data, everyone);
    reference_optimizer.zero_grad();
    const auto reference_loss =
        torch::cross_entropy_loss(reference->forward(whole.inputs), whole.targets);
    reference_loss.backward();
    loss_of_reference.add(reference_loss);
    reference_optimizer.step();
  }
  add_figure(context, "final_distance",
             relative_distance(flat_parameters(*net), flat_parameters(*reference)));
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().reference_losses.push_back(loss_of_reference.value());
}

// Eight float32 steps in another order of summation: the correct variant is 1e-7 away.
Measured final_distance(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "final_distance"), .tolerance = 1e-4};
}

}  // namespace

lockstep::Part conversion_part() {
  return {
      .name = "conversion",
      .run = train,
      .broken = {{.slug = "sync-bn-after-wrapping",
                  .what = "the layer is replaced after DDP took the old one's parameters",
                  .oracle = {"weights after 8 steps, distance from one process", final_distance}}},
      .near_misses = {{.name = "near-miss-converted-in-place",
                       .slug = "sync-bn-after-wrapping",
                       .naive_check = "BatchNorm is converted after the wrapper was made"}}};
}
