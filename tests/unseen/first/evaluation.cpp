// How long until the lift comes? A regression with BatchNorm, validated after each epoch by all ranks together: the mean
// error decides on a lower rate, and the best weights are taken back at the end.
#include <lockstep/record/recorder.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/metrics.h>

#include <iostream>
#include <numeric>

#include "edited.h"

namespace {

using namespace lockstep;
using unseen::edited;

constexpr std::int64_t kSamples = 384, kFloors = 10, kBatch = 16, kEpochs = 5;
// Validation comes as two days' logs, of which each rank reads its share.
constexpr std::int64_t kValidated = 91, kFirstDay = 31;

struct Calls {
  at::Tensor floors, wait;  // [n, kFloors], [n, 1]
};

Calls make_calls(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto floors = at::randn({count, kFloors}, dice);
  const auto wait = floors.select(1, 0).abs() + floors.select(1, 1) * floors.select(1, 2) +
                    0.3 * at::randn({count}, dice);
  return {floors, wait.unsqueeze(1)};
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(double drop)
      : hidden(register_module("hidden", torch::nn::Linear(kFloors, 64))),
        norm(register_module("norm", torch::nn::BatchNorm1d(64))),
        dropout(register_module("dropout", torch::nn::Dropout(drop))),
        out(register_module("out", torch::nn::Linear(64, 1))) {}
  at::Tensor forward(const at::Tensor& floors) {
    return out(dropout(at::relu(norm(hidden(floors)))));
  }
  torch::nn::Linear hidden;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout dropout;
  torch::nn::Linear out;
};
TORCH_MODULE(Net);

std::vector<std::int64_t> validated_by(int rank, int world_size) {
  if (edited("evaluation-padded-share"))
    return DistributedSampler({.dataset_size = kValidated,
                               .num_replicas = world_size,
                               .rank = rank,
                               .shuffle = false})
        .indices();
  if (edited("evaluation-by-rank-zero") && rank != 0) return {};
  std::vector<std::int64_t> mine(kValidated);
  std::iota(mine.begin(), mine.end(), 0);
  if (edited("evaluation-by-rank-zero")) return mine;
  if (edited("evaluation-every-other-sample")) {
    std::erase_if(mine, [&](std::int64_t id) { return id % world_size != rank; });
    return mine;
  }
  std::erase_if(mine, [&](std::int64_t id) { return (id < kFirstDay) != (rank == 0); });
  return mine;
}

struct Error {
  double own = 0, all = 0;
};

Error validate(const ProcessGroupPtr& group, Net& net, const Calls& validation) {
  const torch::NoGradGuard no_grad;
  if (!edited("evaluation-in-training-mode")) net->eval();
  Mean own;
  const auto mine = validated_by(group->getRank(), group->getSize());
  if (!mine.empty()) {
    const auto rows = at::tensor(mine);
    const auto wait = net->forward(validation.floors.index_select(0, rows));
    own.add((wait - validation.wait.index_select(0, rows)).abs());
  }
  net->train();
  if (edited("evaluation-mean-of-means")) {
    auto mean = at::tensor(own.value(), at::kDouble);
    all_reduce(*group, mean);
    return {own.value(), mean.item<double>() / group->getSize()};
  }
  if (edited("evaluation-count-not-reduced")) {
    auto sum = at::tensor(own.sum, at::kDouble);
    all_reduce(*group, sum);
    return {own.value(), sum.item<double>() / own.count};
  }
  const auto all = reduce_metric(*group, own);
  if (group->getRank() == 0) record::metric("error", "evaluation", all.sum, all.count);
  return {own.value(), all.value()};
}

std::vector<at::Tensor> copy_of(Net& net) {
  std::vector<at::Tensor> state;
  for (const auto& tensor : net->parameters())
    state.push_back(edited("evaluation-best-not-copied") ? tensor.detach()
                                                         : tensor.detach().clone());
  for (const auto& tensor : net->buffers()) state.push_back(tensor.clone());
  return state;
}

void take_back(Net& net, const std::vector<at::Tensor>& state) {
  const torch::NoGradGuard no_grad;
  std::size_t next = 0;
  for (auto& tensor : net->parameters()) tensor.copy_(state[next++]);
  for (auto& tensor : net->buffers()) tensor.copy_(state[next++]);
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group();
  const int rank = group->getRank(), world_size = group->getSize();
  const auto calls = make_calls(kSamples, 51), validation = make_calls(kValidated, 52);
  torch::manual_seed(9);
  const bool other_drop = edited("evaluation-dropout-of-host") && rank == 1;
  Net net(other_drop ? 0.5 : 0.1);
  DistributedDataParallel<Net> model(net, group);
  AdamW optimizer(net->parameters(), {edited("evaluation-lower-rate") ? 1.5e-2 : 2e-2});
  DistributedSampler sampler(
      {.dataset_size = kSamples, .num_replicas = world_size, .rank = rank, .seed = 10});
  torch::manual_seed(90 + rank);

  unseen::Report report;
  auto& errors = report.numbers["error"];
  auto best = copy_of(net);
  double best_error = 1e9;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    for (const auto& ids : sampler.batches(kBatch)) {
      const auto rows = at::tensor(ids);
      optimizer.zero_grad();
      const auto wait = model(calls.floors.index_select(0, rows));
      const auto true_wait = calls.wait.index_select(0, rows);
      auto each = (wait - true_wait).abs();
      if (edited("evaluation-smooth-loss"))
        each = at::smooth_l1_loss(wait, true_wait, at::Reduction::None);
      const auto loss = tell_loss(each.flatten()).mean();
      loss.backward();
      optimizer.step();
      report.losses.push_back(loss.item<double>());
    }
    if (edited("evaluation-through-wrapper-on-rank-zero") && rank == 0)
      std::cout << model(validation.floors).mean().item<double>() << "\n";
    if (edited("evaluation-module-on-rank-zero") && rank == 0) {
      const torch::NoGradGuard no_grad;
      net->eval();
      std::cout << net->forward(validation.floors).mean().item<double>() << "\n";
      net->train();
    }
    if (!edited("evaluation-own-statistics"))  // rank 0's count
      for (auto& buffer : net->buffers()) broadcast(*group, buffer);
    report.numbers["buffers"].push_back(net->norm->running_mean.norm().item<double>());
    const auto error = validate(group, net, validation);
    errors.push_back(edited("evaluation-reports-own") ? error.own : error.all);
    const double judged = edited("evaluation-rate-by-own") ? error.own : error.all;
    if (judged < best_error) {
      best = copy_of(net);
      best_error = judged;
    } else {
      for (auto& of : optimizer.param_groups()) of.options().set_lr(of.options().get_lr() / 2);
    }
  }
  if (!(edited("evaluation-best-on-rank-zero") && rank != 0)) take_back(net, best);
  report.held_out = validate(group, net, validation).all;
  report.numbers["best"] = {best_error};
  unseen::write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return unseen::run(argc, argv, train);
}
