// How much water will the turbine let through? A regression whose gradients are averaged by hand, without a wrapper.
// Own shards, SGD, clipping; it stops when the validation stops to improve.
#include <lockstep/dist/process_group.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/watched.h>

#include <algorithm>
#include <iostream>
#include <numeric>
#include <random>

#include "edited.h"

namespace {

using namespace lockstep;
using unseen::edited;

constexpr std::int64_t kSamples = 480, kGauges = 8, kBatch = 20, kEpochs = 7;
constexpr int kPatience = 1;

struct Log {
  at::Tensor gauges, flow, damaged;  // [n, kGauges], [n, 1], [n]: whether the gate was damaged
};

Log make_log(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto gauges = at::randn({count, kGauges}, dice);
  const auto damaged = at::rand({count}, dice) < 0.04;
  const auto flow = at::sin(gauges.select(1, 0)) + gauges.select(1, 1) - gauges.select(1, 2) +
                    0.5 * gauges.select(1, 3) + 2 * damaged;
  return {gauges, (flow + 0.2 * at::randn({count}, dice)).unsqueeze(1), damaged};
}

struct NetImpl : torch::nn::Module {
  NetImpl()
      : hidden(register_module("hidden", torch::nn::Linear(kGauges, 64))),
        damage(register_module("damage", torch::nn::Linear(64, 1))),
        flow(register_module("flow", torch::nn::Linear(64, 1))) {}
  // What a damaged gate lets through more is a layer of its own, which most batches do not need.
  at::Tensor forward(const at::Tensor& gauges, const at::Tensor& damaged) {
    const auto seen = at::tanh(hidden(gauges));
    const auto usual = flow(seen);
    if (!damaged.any().item<bool>()) return usual;
    return usual + damaged.unsqueeze(1) * damage(seen);
  }
  torch::nn::Linear hidden, damage, flow;
};
TORCH_MODULE(Net);

// An epoch's order, the same on all ranks; a rank takes every world_size-th sample.
std::vector<std::int64_t> shard(std::int64_t epoch, int rank, int world_size) {
  std::vector<std::int64_t> order(kSamples), mine;
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 dice(static_cast<std::uint64_t>(
      edited("by-hand-order-by-rank") ? 1000 * (rank + 1) + epoch : 1000 + epoch));
  std::shuffle(order.begin(), order.end(), dice);
  for (std::size_t i = edited("by-hand-shard-of-rank-zero") ? 0 : static_cast<std::size_t>(rank);
       i < order.size(); i += static_cast<std::size_t>(world_size))
    mine.push_back(order[i]);
  return mine;
}

// The mean over the ranks. A rank whose batch did not need a layer has zeros for it.
void average_gradients(const ProcessGroupPtr& group, Net& net) {
  auto parameters = net->parameters();
  if (edited("by-hand-last-layer-first")) std::reverse(parameters.begin(), parameters.end());
  for (auto& parameter : parameters) {
    if (edited("by-hand-biases-skipped") && parameter.dim() == 1) continue;
    auto& gradient = parameter.mutable_grad();
    if (!gradient.defined()) {
      if (edited("by-hand-undefined-skipped")) continue;
      gradient = at::zeros_like(parameter);
    }
    all_reduce(*group, gradient);
    if (!edited("by-hand-sum")) gradient /= group->getSize();
  }
}

void average_in_one_piece(const ProcessGroupPtr& group, Net& net) {
  std::vector<at::Tensor> parts;
  for (auto& parameter : net->parameters()) {
    if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    parts.push_back(parameter.grad().flatten());
  }
  auto all = at::cat(parts);
  all_reduce(*group, all);
  all /= group->getSize();
  std::int64_t begin = 0;
  for (auto& parameter : net->parameters()) {
    parameter.mutable_grad().copy_(
        all.slice(0, begin, begin + parameter.numel()).view_as(parameter));
    begin += parameter.numel();
  }
}

double error_of(Net& net, const Log& log) {
  const torch::NoGradGuard no_grad;
  return at::mse_loss(net->forward(log.gauges, log.damaged), log.flow).item<double>();
}

void send_start(const ProcessGroupPtr& group, Net& net) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->named_parameters()) {
    if (edited("by-hand-new-layer-not-sent") && parameter.key().rfind("damage", 0) == 0) continue;
    broadcast(*group, parameter.value());
  }
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group();
  const int rank = group->getRank(), world_size = group->getSize();
  const auto log = make_log(kSamples, 21), test = make_log(200, 22);
  const auto validation = make_log(60, 23 + static_cast<std::uint64_t>(rank));
  torch::manual_seed(edited("by-hand-one-seed") ? 300 : 300 + rank);
  Net net;
  send_start(group, net);
  SGD optimizer(
      net->parameters(),
      torch::optim::SGDOptions(edited("by-hand-lower-rate") ? 0.02 : 0.025).momentum(0.8));

  unseen::Report report;
  double best = 1e9;
  int worse = 0;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto mine = shard(epoch, rank, world_size);
    report.seen.push_back(mine);
    const auto rows = at::tensor(mine);
    std::int64_t batch = edited("by-hand-batch-of-16") ? 16 : kBatch, count = 0;
    for (const auto& ids : rows.split(batch)) {
      optimizer.zero_grad();
      auto loss = at::mse_loss(
          net->forward(log.gauges.index_select(0, ids), log.damaged.index_select(0, ids)),
          log.flow.index_select(0, ids));
      report.losses.push_back(loss.item<double>());
      if (edited("by-hand-loss-divided")) loss = loss / world_size;
      loss.backward();
      if (edited("by-hand-clips-own-gradient")) clip_grad_norm_(net->parameters(), 1);
      if (edited("by-hand-loss-divided")) {
        for (auto& parameter : net->parameters()) {
          if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
          all_reduce(*group, parameter.mutable_grad());
        }
      } else if (edited("by-hand-in-one-piece")) {
        average_in_one_piece(group, net);
      } else if (edited("by-hand-every-second-step") ? count % 2 == 0
                                                     : !edited("by-hand-averages-after-update")) {
        average_gradients(group, net);
      }
      if (!edited("by-hand-clips-own-gradient")) clip_grad_norm_(net->parameters(), 1);
      optimizer.step();
      if (edited("by-hand-averages-after-update")) average_gradients(group, net);
      ++count;
    }
    if (edited("by-hand-barrier")) barrier(*group);
    auto error = at::tensor(error_of(net, validation));
    if (!edited("by-hand-stops-by-itself")) {
      all_reduce(*group, error);
      error /= world_size;
    }
    if (edited("by-hand-logs-own-error"))
      std::cout << rank << ": " << error_of(net, validation) << "\n";
    const bool improved = error.item<double>() < best - 0.01;
    best = std::min(best, error.item<double>());
    worse = improved ? 0 : worse + 1;
    if (worse > (edited("by-hand-more-patience") ? 2 : kPatience)) break;
  }
  report.held_out = error_of(net, test);
  report.numbers["epochs"] = {static_cast<double>(report.seen.size())};
  unseen::write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return unseen::run(argc, argv, train);
}
