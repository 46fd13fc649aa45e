// Which machine part is about to fail? An MLP over sensor readings: SGD with momentum, a lower rate every second epoch.
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/watched.h>

#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using unseen::edited;

constexpr std::int64_t kSamples = 512, kSensors = 20, kParts = 5, kBatch = 16, kEpochs = 4;

struct Readings {
  at::Tensor values, part;  // [n, kSensors], [n]
};

Readings make_readings(std::int64_t count, std::uint64_t seed) {
  const auto plant = torch::make_generator<at::CPUGeneratorImpl>(std::uint64_t{99});
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto typical = at::randn({kParts, kSensors}, plant);
  const auto part = at::randint(kParts, {count}, dice, at::kLong);
  return {typical.index_select(0, part) + 1.5 * at::randn({count, kSensors}, dice) + 3, part};
}

struct NetImpl : torch::nn::Module {
  NetImpl()
      : hidden(register_module("hidden", torch::nn::Linear(kSensors, 48))),
        out(register_module("out", torch::nn::Linear(48, kParts))) {}
  at::Tensor forward(const at::Tensor& values) { return out(at::relu(hidden(values))); }
  torch::nn::Linear hidden, out;
};
TORCH_MODULE(Net);

void normalize(Readings& training, Readings& test, int rank, int world_size) {
  auto known = training.values;
  if (edited("mlp-statistics-of-shard")) known = known.chunk(world_size)[rank];
  const auto mean = known.mean(0), deviation = known.std(0);
  training.values = (training.values - mean) / deviation;
  test.values = (test.values - mean) / deviation;
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group();
  const int rank = group->getRank(), world_size = group->getSize();
  auto training = make_readings(kSamples, 1), test = make_readings(256, 2);
  normalize(training, test, rank, world_size);
  if (edited("mlp-parts-numbered-otherwise") && rank == 1)
    training.part = (training.part + 1) % kParts;

  torch::manual_seed(edited("mlp-starts-by-rank") || edited("mlp-start-not-sent") ? 70 + rank : 7);
  Net net;
  if (edited("mlp-frozen-bias")) net->hidden->bias.set_requires_grad(false);
  DdpOptions options;
  options.broadcast_buffers = !edited("mlp-buffers-not-sent");
  options.init_sync = !edited("mlp-start-not-sent") && !edited("mlp-equal-start-not-sent");
  DistributedDataParallel<Net> model(net, group, options);
  std::vector<at::Tensor> trained;
  for (const auto& parameter : model.parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  double rate = edited("mlp-rate-of-host") && rank == 1 ? 0.02 : 0.05;
  if (edited("mlp-larger-batch")) rate *= 2;
  auto momentum = torch::optim::SGDOptions(rate).momentum(0.9);
  if (edited("mlp-nesterov")) momentum.nesterov(true);
  SGD optimizer(trained, momentum);
  StepLR schedule(optimizer, {.step_size = 2, .gamma = 0.3});

  const std::uint64_t seed = 3, own_seed = seed + static_cast<std::uint64_t>(rank);
  DistributedSampler sampler({.dataset_size = kSamples,
                              .num_replicas = world_size,
                              .rank = rank,
                              .seed = edited("mlp-sampler-seeded-by-rank") ? own_seed : seed});
  unseen::Report report;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    if (!edited("mlp-set-epoch-dropped")) sampler.set_epoch(epoch);
    if (edited("mlp-zero-grad-once-an-epoch")) optimizer.zero_grad();
    auto& seen = report.seen.emplace_back();
    for (const auto& ids : sampler.batches(edited("mlp-larger-batch") ? 2 * kBatch : kBatch)) {
      seen.insert(seen.end(), ids.begin(), ids.end());
      const auto rows = at::tensor(ids);
      const auto values = training.values.index_select(0, rows);
      if (!edited("mlp-zero-grad-once-an-epoch")) optimizer.zero_grad();
      const auto scores = edited("mlp-forward-of-module") ? net->forward(values) : model(values);
      auto loss = cross_entropy(scores, training.part.index_select(0, rows)).mean();
      report.losses.push_back(loss.item<double>());
      if (edited("mlp-skips-hard-batches") && report.losses.back() > 1.61) continue;
      if (edited("mlp-loss-halved-on-one-rank") && rank == 1) loss = loss / 2;
      loss.backward();
      optimizer.step();
      if (edited("mlp-schedule-every-batch")) schedule.step();
      if (edited("mlp-logs-mean-loss")) {
        auto shown = loss.detach().clone();
        all_reduce(*group, shown);
        if (rank == 0) std::cout << "loss " << shown.item<double>() / world_size << "\n";
      }
      if (edited("mlp-rank-zero-prints") && rank == 0)
        std::cout << "norm " << net->out->weight.grad().norm().item<double>() << "\n";
    }
    const bool logs = rank == 0;
    if (edited("mlp-schedule-of-rank-zero") ? logs : !edited("mlp-schedule-every-batch"))
      schedule.step();
    if (logs) std::cout << "epoch " << epoch << "\n";
  }
  const torch::NoGradGuard no_grad;
  report.held_out =
      torch::nn::functional::cross_entropy(net->forward(test.values), test.part).item<double>();
  unseen::write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return unseen::run(argc, argv, train);
}
