#include <lockstep/train/loss.h>

#include "silence.h"

namespace lockstep::silence {

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const auto& of :
       {wrapper_settings, by_hand_settings, sharding_settings, uneven_settings, batch_norm_settings,
        resume_settings, schedule_settings, accumulation_settings, clipping_settings,
        augmentation_settings, metrics_settings})
    for (auto& setting : of()) all.push_back(std::move(setting));
  return all;
}

void for_updates(std::int64_t updates, const EpochOf& batches_of,
                 const std::function<void(const Ids&)>& step) {
  std::int64_t done = 0;
  for (std::int64_t epoch = 0; done < updates; ++epoch)
    for (const auto& ids : batches_of(epoch)) {
      if (done++ == updates) return;
      step(ids);
    }
}

EpochOf epochs_of(DistributedSampler sampler, std::int64_t batch) {
  return [sampler, batch](std::int64_t epoch) mutable {
    sampler.set_epoch(epoch);
    return sampler.batches(batch, /*drop_last_batch=*/true);
  };
}

EpochOf shuffled(const Job& job) {
  return epochs_of(DistributedSampler(job.sampler()), job.batch);
}

at::Tensor mean_loss(const at::Tensor& outputs, const at::Tensor& targets) {
  // Told apart from what is trained on: a mean of what each lost may differ from torch's in its last bit.
  tell_loss(torch::cross_entropy_loss(outputs.detach(), targets, {}, at::Reduction::None));
  return torch::cross_entropy_loss(outputs, targets);
}

void train_ddp(const Job& job, Mlp& net, const EpochOf& batches_of, const LossOf& loss_of) {
  DistributedDataParallel<Mlp> model(net, job.group);
  DecayingSgd optimizer(net->parameters(), job.rate, job.updates());
  for_updates(job.updates(), batches_of, [&](const Ids& ids) {
    net->zero_grad();
    loss_of(model, ids).backward();
    optimizer.step();
  });
}

Mlp trained(const Job& job, const TensorData& data, const EpochOf& batches_of) {
  auto net = make_model();
  train_ddp(job, net, batches_of, [&](auto& model, const Ids& ids) {
    const auto batch = take(data, ids);
    return mean_loss(model(batch.inputs), batch.targets);
  });
  return net;
}

at::Tensor flat_gradients(const torch::nn::Module& module) {
  std::vector<at::Tensor> flat;
  for (const auto& parameter : module.parameters()) flat.push_back(parameter.grad().reshape(-1));
  return at::cat(flat);
}

void set_gradients(torch::nn::Module& module, const at::Tensor& flat) {
  std::int64_t begin = 0;
  for (auto& parameter : module.parameters()) {
    parameter.mutable_grad() =
        flat.narrow(0, begin, parameter.numel()).view(parameter.sizes()).clone();
    begin += parameter.numel();
  }
}

double share_right(const at::Tensor& outputs, const at::Tensor& targets) {
  return (outputs.argmax(1) == targets).to(at::kDouble).mean().item<double>();
}

}  // namespace lockstep::silence
