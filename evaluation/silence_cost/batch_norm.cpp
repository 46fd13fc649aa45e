// BatchNorm on four samples a rank: few, so that statistics of one rank's own are rough. Twice as many updates
// as in the other settings.
#include <lockstep/record/recorder.h>
#include <lockstep/train/functional.h>
#include <lockstep/train/sync_batch_norm.h>

#include "silence.h"

namespace lockstep::silence {
namespace {

using torch::nn::Sequential;

std::int64_t small_batch(const Job& job) {
  return std::max<std::int64_t>(2, job.batch / 8);
}

std::int64_t updates_of(const Job& job) {
  return 2 * job.updates();
}

Sequential around(const torch::nn::AnyModule& norm) {
  Sequential net(torch::nn::Linear(784, 64));
  net->push_back(norm);
  net->push_back(torch::nn::ReLU());
  net->push_back(torch::nn::Linear(64, 10));
  return net;
}

Sequential plain_net() {
  return around(torch::nn::AnyModule(torch::nn::BatchNorm1d(64)));
}

// SyncBatchNorm in place of BatchNorm; the new layer has parameters of its own.
void replace_batch_norm(Sequential& net, const ProcessGroupPtr& group) {
  SyncBatchNorm layer(torch::nn::BatchNormOptions(64), group);
  *(net->begin() + 1) = torch::nn::AnyModule(layer);  // what forward runs
  net->replace_module("1", layer);                    // what parameters() lists
}

double synchronized(const Job& job, const Fault& fault) {
  auto net = plain_net();
  const bool late = fault("sync-bn-after-wrapping");
  if (!late && !fault("local-batch-norm")) replace_batch_norm(net, job.group);
  DistributedDataParallel<Sequential> model(net, job.group, {.find_unused_parameters = true});
  if (late) replace_batch_norm(net, job.group);
  DecayingSgd optimizer(net->parameters(), job.rate, updates_of(job));
  for_updates(updates_of(job), epochs_of(DistributedSampler(job.sampler()), small_batch(job)),
              [&](const Ids& ids) {
                const auto batch = take(job.train, ids);
                net->zero_grad();
                mean_loss(model(batch.inputs), batch.targets).backward();
                optimizer.step();
              });
  return accuracy(net, job.test);
}

double buffers(const Job& job, const Fault& fault) {
  auto net = plain_net();
  DistributedDataParallel<Sequential> model(net, job.group,
                                            {.broadcast_buffers = !fault("buffers-not-synced")});
  DecayingSgd optimizer(net->parameters(), job.rate, updates_of(job));
  std::int64_t done = 0;
  for_updates(
      updates_of(job), epochs_of(DistributedSampler(job.sampler()), small_batch(job)),
      [&](const Ids& ids) {
        if (++done == updates_of(job) / 2 && job.rank() == 0) {  // has a look at the test set
          net->eval();
          if (!fault("train-mode-differs-across-ranks")) net->train();
        }
        const auto batch = take(job.train, ids);
        net->zero_grad();
        std::vector<at::Tensor> before;
        for (const auto& buffer : net->buffers()) before.push_back(buffer.clone());
        mean_loss(model(batch.inputs), batch.targets).backward();
        optimizer.step();
        if (fault("replica-buffers-lost")) {  // forward ran on a copy, which is thrown away
          const torch::NoGradGuard no_grad;
          for (std::size_t i = 0; i < before.size(); ++i) net->buffers()[i].copy_(before[i]);
        }
      });
  const double own = accuracy(net, job.test);
  // The job's own evaluation goes through the wrapper, which may give all ranks rank 0's statistics.
  const torch::NoGradGuard no_grad;
  model.eval();
  model(job.test.inputs);
  return own;
}

// Statistics over all ranks' rows, written out.
struct NormByHandImpl : torch::nn::Module {
  NormByHandImpl(ProcessGroupPtr ranks, std::int64_t all_rows, bool mean_of_means)
      : group(std::move(ranks)),
        rows_of_all(static_cast<double>(all_rows)),
        takes_mean_of_means(mean_of_means) {
    weight = register_parameter("weight", torch::ones(64));
    bias = register_parameter("bias", torch::zeros(64));
    running_mean = register_buffer("running_mean", torch::zeros(64));
    running_var = register_buffer("running_var", torch::ones(64));
  }
  at::Tensor mean_of_all(const at::Tensor& rows) {
    at::Tensor mean;
    if (takes_mean_of_means)
      mean = functional::all_reduce(group, rows.mean(0)) / group->getSize();
    else
      mean = functional::all_reduce(group, rows.sum(0)) / rows_of_all;
    record::average("statistics", rows.mean(0), rows.size(0), mean);
    return mean;
  }
  at::Tensor forward(const at::Tensor& rows) {
    if (!is_training())
      return torch::batch_norm(rows, weight, bias, running_mean, running_var, false, 0, 1e-5,
                               false);
    const auto mean = mean_of_all(rows), variance = mean_of_all((rows - mean).square());
    {
      const torch::NoGradGuard no_grad;
      running_mean.lerp_(mean, 0.1);
      running_var.lerp_(variance * (rows_of_all / (rows_of_all - 1)), 0.1);
    }
    return (rows - mean) * (variance + 1e-5).rsqrt() * weight + bias;
  }
  ProcessGroupPtr group;
  double rows_of_all;
  bool takes_mean_of_means;
  at::Tensor weight, bias, running_mean, running_var;
};
TORCH_MODULE(NormByHand);

// The last rank has a single sample, where the others have a batch.
double counts(const Job& job, const Fault& fault) {
  const bool is_last = job.rank() + 1 == job.world_size();
  const auto batch_size = small_batch(job), global = batch_size * (job.world_size() - 1) + 1;
  NormByHand norm(job.group, global, fault("unequal-counts-in-sync"));
  auto net = around(torch::nn::AnyModule(norm));
  DistributedDataParallel<Sequential> model(net, job.group);
  DecayingSgd optimizer(net->parameters(), job.rate, updates_of(job));
  for_updates(
      job.updates(), epochs_of(DistributedSampler(job.sampler()), batch_size), [&](const Ids& ids) {
        const auto batch = take(job.train, {ids.begin(), is_last ? ids.begin() + 1 : ids.end()});
        net->zero_grad();
        const auto weight =
            static_cast<double>(batch.size() * job.world_size()) / static_cast<double>(global);
        (mean_loss(model(batch.inputs), batch.targets) * weight).backward();
        optimizer.step();
      });
  return accuracy(net, job.test);
}

}  // namespace

std::vector<Setting> batch_norm_settings() {
  return {{"sync-batch-norm", {"local-batch-norm", "sync-bn-after-wrapping"}, synchronized},
          {"batch-norm-buffers",
           {"buffers-not-synced", "train-mode-differs-across-ranks", "replica-buffers-lost"},
           buffers},
          {"batch-norm-counts", {"unequal-counts-in-sync"}, counts}};
}

}  // namespace lockstep::silence
