// Two tasks on one trunk: what is wrong with a machine, and how many hours it will last, which is known of few.
// Each task's loss is weighed by an uncertainty that is learned, too.
#include <lockstep/record/recorder.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/sync_batch_norm.h>
#include <lockstep/train/watched.h>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kMachines = 1600, kTestMachines = 601, kSensors = 12, kKinds = 4;
constexpr std::int64_t kBatch = 24, kEpochs = 2;
constexpr std::uint64_t kSeed = 5;

struct Machines {
  at::Tensor sensors, kind, hours, known;  // [n, kSensors], [n], [n], [n] of 1 or 0
};

Machines make_machines(std::int64_t count, std::uint64_t seed) {
  const auto laws = torch::make_generator<at::CPUGeneratorImpl>(kSeed);
  const auto of_kind = 1.5 * at::randn({kKinds, kSensors}, laws);
  const auto of_hours = at::randn({kSensors}, laws);
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto kind = at::randint(kKinds, {count}, dice, at::kLong);
  const auto sensors = of_kind.index_select(0, kind) + 1.5 * at::randn({count, kSensors}, dice);
  const auto hours = at::tanh(sensors.matmul(of_hours) / 4) + 0.1 * at::randn({count}, dice);
  const auto known = (at::rand({count}, dice) < 0.12).to(at::kFloat);
  return {20 + 4 * sensors, kind, hours, known};
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool weighs) {
    if (weighs) log_variance = register_parameter("log_variance", torch::zeros({2}));
  }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& sensors) {
    const auto shared = trunk->forward(sensors);
    return {kind(shared), hours->forward(shared).squeeze(1)};
  }
  torch::nn::Sequential trunk =
      register_module("trunk", torch::nn::Sequential(torch::nn::Linear(kSensors, 48),
                                                     torch::nn::BatchNorm1d(48), torch::nn::ReLU(),
                                                     torch::nn::Linear(48, 24), torch::nn::ReLU()));
  torch::nn::Linear kind = register_module("kind", torch::nn::Linear(24, kKinds));
  torch::nn::Sequential hours = register_module(
      "hours", torch::nn::Sequential(torch::nn::Linear(24, 16), torch::nn::BatchNorm1d(16),
                                     torch::nn::ReLU(), torch::nn::Linear(16, 1)));
  at::Tensor log_variance;
};
TORCH_MODULE(Net);

// Mean and deviation of each sensor over all machines; a rank reads its share of them.
std::pair<at::Tensor, at::Tensor> statistics(c10d::ProcessGroup& group, const at::Tensor& sensors) {
  const auto own = sensors.slice(0, group.getRank(), std::nullopt, group.getSize()).to(at::kDouble);
  auto sums = at::stack({own.sum(0), own.pow(2).sum(0), at::full({kSensors}, own.size(0))});
  if (!edited("multitask-statistics-of-own-rows")) all_reduce(group, sums);
  const auto mean = sums[0] / sums[2];
  return {mean.to(at::kFloat), (sums[1] / sums[2] - mean.pow(2)).sqrt().to(at::kFloat)};
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  Report report;
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  auto machines = make_machines(kMachines, kSeed + 1);
  auto test = make_machines(kTestMachines, kSeed + 2);
  const auto [mean, deviation] = statistics(*group, machines.sensors);
  machines.sensors = (machines.sensors - mean) / deviation;
  test.sensors = (test.sensors - mean) / deviation;
  report.numbers["mean"] = flat(mean);

  torch::manual_seed(kSeed);
  Net net(!edited("multitask-variances-outside-model"));
  const auto convert = [&] {
    convert_sync_batchnorm(edited("multitask-hours-norm-not-converted")
                               ? static_cast<torch::nn::Module&>(*net->trunk)
                               : *net,
                           group);
  };
  if (!edited("multitask-converts-after-wrapping")) convert();
  DistributedDataParallel<Net> model(
      net, group, {.find_unused_parameters = edited("multitask-looks-for-unused-parameters")});
  if (edited("multitask-converts-after-wrapping")) convert();
  auto parameters = net->parameters();
  if (edited("multitask-variances-outside-model")) {
    net->log_variance = torch::zeros({2}, torch::requires_grad());
    parameters.push_back(net->log_variance);
  }
  SGD optimizer(parameters, torch::optim::SGDOptions(0.02).momentum(0.9));

  // A tenth of the machines is kept for another use.
  manual_seed_per_rank(kSeed, rank);
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(
      edited("multitask-another-split") ? kSeed + 4 : kSeed + 3);
  const auto split = edited("multitask-split-drawn-per-rank") ? torch::randperm(kMachines)
                                                              : at::randperm(kMachines, dice);
  const auto training = split.slice(0, kMachines / 10);
  DistributedSampler sampler(
      {.dataset_size = training.size(0), .num_replicas = world_size, .rank = rank, .seed = kSeed});
  auto cycle = kEpochs * ((sampler.size() + kBatch - 1) / kBatch);
  if (edited("multitask-cycle-ignores-ranks"))
    cycle = kEpochs * ((training.size(0) + kBatch - 1) / kBatch);
  OneCycleLR schedule(optimizer, {.max_lr = {0.2}, .total_steps = cycle + 1});
  record::intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});

  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    report.seen.emplace_back();
    for (const auto& drawn : sampler.batches(kBatch)) {
      const auto ids = training.index_select(0, at::tensor(drawn));
      for (std::int64_t i = 0; i < ids.size(0); ++i)
        report.seen.back().push_back(ids[i].item<std::int64_t>());
      const auto known = machines.known.index_select(0, ids);
      auto count = known.sum();
      if (edited("multitask-skips-batch-without-hours") && count.item<double>() == 0) continue;
      if (edited("multitask-hours-by-own-count"))
        count *= world_size;
      else
        all_reduce(*group, count);

      optimizer.zero_grad();
      const auto [logits, hours] = model(machines.sensors.index_select(0, ids));
      const auto of_kind = cross_entropy(logits, machines.kind.index_select(0, ids));
      auto kind_loss =
          edited("multitask-sum-by-size") ? of_kind.sum() / of_kind.size(0) : of_kind.mean();
      if (edited("multitask-kind-weight-on-last-rank") && is_last) kind_loss = 3 * kind_loss;
      const auto squares = known * (hours - machines.hours.index_select(0, ids)).pow(2);
      const auto hours_loss = squares.sum() * world_size / count.clamp_min(1);
      const auto losses = at::stack({kind_loss, hours_loss});
      const auto loss = (losses * at::exp(-net->log_variance) + net->log_variance).sum();
      if (edited("multitask-clips-before-backward")) clip_grad_norm_(parameters, 0.5);
      loss.backward();
      if (!edited("multitask-clips-before-backward")) clip_grad_norm_(parameters, 0.5);
      optimizer.step();
      if (!edited("multitask-cycle-stepped-by-epoch")) schedule.step();
      report.losses.push_back(loss.item<double>());
    }
    if (edited("multitask-cycle-stepped-by-epoch")) schedule.step();
  }

  const torch::NoGradGuard no_grad;
  net->eval();
  const auto own = at::arange(rank, kTestMachines, world_size);
  const auto inputs = test.sensors.index_select(0, own);
  const auto [logits, hours] =
      edited("multitask-evaluates-through-wrapper") ? model(inputs) : net->forward(inputs);
  const auto target = test.kind.index_select(0, own);
  Mean right, error, loss;
  right.add(logits.argmax(1) == target);
  error.add((hours - test.hours.index_select(0, own)).pow(2));
  loss.add(at::cross_entropy_loss(logits, target, {}, at::Reduction::None));
  report.numbers["accuracy"] = {reduce_metric(*group, right).value()};
  if (!edited("multitask-hours-error-of-own-rows")) error = reduce_metric(*group, error);
  report.numbers["hours_error"] = {error.value()};
  report.held_out = reduce_metric(*group, loss).value() + error.value();
  report.numbers["buffers"] = flat(net->named_buffers()["hours.1.running_mean"]);
  report.numbers["log_variance"] = flat(net->log_variance);
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
