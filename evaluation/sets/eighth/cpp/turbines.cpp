// How much power will a wind turbine give in a while? Each rank has the records of its own turbines, which
// are not equally long. Gradients are summed by hand and weigh each window alike; the learning rate is
// halved when the validation of all ranks no longer gets better.
#include <lockstep/dist/process_group.h>
#include <lockstep/train/agreement.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/watched.h>

#include <algorithm>
#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kTurbines = 11, kTestTurbines = 4, kMoments = 8, kAhead = 2, kHidden = 12;
constexpr std::int64_t kEpochs = 10, kBatch = 40, kChunk = 48, kWarmUp = 8;
constexpr std::uint64_t kSeed = 2024;
constexpr double kRate = 0.006, kMostNorm = 0.15, kBetter = 0.985;

struct Windows {
  at::Tensor inputs, targets, ids;  // [n, moments, 2], [n], [n]
  std::int64_t size() const { return inputs.size(0); }
};

// A turbine's records: gusts that die down, the air's warmth, and a power that follows the wind late.
Windows records_of(std::int64_t turbine) {
  auto dice = torch::make_generator<at::CPUGeneratorImpl>(kSeed + 31 * turbine);
  const std::int64_t length = turbine % 2 == 0 ? 90 : 48;
  const auto gusts = at::randn({length}, dice), warmth = at::randn({1}, dice).expand({length});
  const auto noise = 0.1 * at::randn({length}, dice);
  std::vector<at::Tensor> winds, powers;
  auto wind = at::zeros({}), power = at::zeros({});
  for (std::int64_t moment = 0; moment < length; ++moment) {
    wind = 0.85 * wind + 0.5 * gusts[moment];
    power = 0.6 * power + 0.4 * at::sigmoid(2 * wind - 0.3 * warmth[moment]);
    winds.push_back(wind);
    powers.push_back(2 * power + noise[moment]);
  }
  const auto series = at::stack({at::stack(winds), at::stack(powers)}, 1);
  std::vector<at::Tensor> inputs, targets;
  const std::int64_t ahead = edited("turbines-forecasts-the-present") ? 0 : kAhead;
  for (std::int64_t first = 0; first + kMoments + kAhead <= length; ++first) {
    inputs.push_back(series.narrow(0, first, kMoments));
    targets.push_back(series[first + kMoments - 1 + ahead][1]);
  }
  const auto count = static_cast<std::int64_t>(inputs.size());
  return {at::stack(inputs), at::stack(targets), at::arange(count) + 1000 * turbine};
}

Windows joined(const std::vector<Windows>& parts) {
  std::vector<at::Tensor> inputs, targets, ids;
  for (const auto& part : parts) {
    inputs.push_back(part.inputs);
    targets.push_back(part.targets);
    ids.push_back(part.ids);
  }
  return {at::cat(inputs), at::cat(targets), at::cat(ids)};
}

struct ForecastImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& inputs) {
    const auto states = std::get<0>(gru(inputs));
    return out(states.select(1, states.size(1) - 1)).squeeze(1);
  }
  torch::nn::GRU gru =
      register_module("gru", torch::nn::GRU(torch::nn::GRUOptions(2, kHidden).batch_first(true)));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(kHidden, 1));
};
TORCH_MODULE(Forecast);

void send_start(const ProcessGroupPtr& group, const Forecast& net) {
  for (const auto& parameter : net->parameters()) {
    auto values = parameter.detach();
    broadcast(*group, values);
  }
}

void add_gradients(const ProcessGroupPtr& group, const std::vector<at::Tensor>& parameters) {
  if (edited("turbines-one-bucket")) {
    std::vector<at::Tensor> parts;
    for (const auto& parameter : parameters) parts.push_back(parameter.grad().flatten());
    auto bucket = at::cat(parts);
    all_reduce(*group, bucket);
    std::int64_t at = 0;
    for (const auto& parameter : parameters) {
      parameter.mutable_grad().copy_(bucket.narrow(0, at, parameter.numel()).view_as(parameter));
      at += parameter.numel();
    }
    return;
  }
  for (const auto& parameter : parameters) {
    if (edited("turbines-biases-not-summed") && parameter.dim() < 2) continue;
    auto gradient = parameter.grad();
    all_reduce(*group, gradient);
  }
}

// The sum and count of squared errors on these windows.
Mean errors_on(Forecast& net, const Windows& windows) {
  const torch::NoGradGuard no_grad;
  Mean errors;
  for (std::int64_t first = 0; first < windows.size(); first += kChunk) {
    const auto count = std::min(kChunk, windows.size() - first);
    const auto forecast = net(windows.inputs.narrow(0, first, count));
    errors.add((forecast - windows.targets.narrow(0, first, count)).square());
    if (edited("turbines-measures-first-chunk")) break;
  }
  return errors;
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(8)});
  const int rank = group->getRank(), ranks = group->getSize();
  std::vector<Windows> to_train, to_validate, to_test, validate_all;
  for (std::int64_t turbine = 0; turbine < kTurbines; ++turbine) {
    const bool validates = turbine % 4 >= 2;
    const auto records = records_of(turbine);
    if (validates) validate_all.push_back(records);
    if (turbine % ranks == rank) (validates ? to_validate : to_train).push_back(records);
  }
  for (auto turbine = kTurbines + rank; turbine < kTurbines + kTestTurbines; turbine += ranks)
    to_test.push_back(records_of(turbine));
  const auto training = joined(to_train), validation = joined(to_validate),
             whole_validation = joined(validate_all);

  manual_seed_per_rank(kSeed, rank);
  Forecast net;
  if (!edited("turbines-start-not-sent")) send_start(group, net);
  const auto parameters = net->parameters();
  Watched<torch::optim::RMSprop> optimizer(
      parameters, torch::optim::RMSpropOptions(kRate).alpha(0.95).eps(1e-3));
  auto rate = kRate;
  const auto set_rate = [&](double now) {
    for (auto& one : optimizer.param_groups()) one.options().set_lr(now);
  };

  const auto own_steps = (training.size() + kBatch - 1) / kBatch;
  const auto most_steps = all_agree(*group, own_steps).most;
  const auto steps = edited("turbines-steps-by-own-count") ? own_steps : most_steps;
  Report report;
  double best = 1e9;
  std::int64_t updates = 0;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto order = at::randperm(training.size(), at::TensorOptions(at::kLong));
    const auto dealt = training.ids.index_select(0, order);
    report.seen.emplace_back(dealt.data_ptr<std::int64_t>(),
                             dealt.data_ptr<std::int64_t>() + dealt.numel());
    // As many parts on each rank: the rank with more windows has larger ones.
    for (const auto& part : order.tensor_split(steps)) {
      if (edited("turbines-warms-up") && updates < kWarmUp)
        set_rate(rate * static_cast<double>(updates + 1) / kWarmUp);
      const auto own = static_cast<double>(part.numel());
      const auto samples = sum_over_ranks(*group, own);
      optimizer.zero_grad();
      const auto forecast = net(training.inputs.index_select(0, part));
      const auto targets = training.targets.index_select(0, part);
      const auto errors = tell_loss((forecast - targets).square(), forecast, targets);
      report.losses.push_back(errors.mean().item<double>());
      const bool later = edited("turbines-divides-after-the-sum");
      if (edited("turbines-mean-of-own-windows"))
        (errors.mean() / ranks).backward();
      else
        (errors.sum() / (later ? 1.0 : samples)).backward();
      if (edited("turbines-clips-before-the-sum")) clip_grad_norm_(parameters, kMostNorm);
      add_gradients(group, parameters);
      if (later)
        for (const auto& parameter : parameters) parameter.mutable_grad().div_(samples);
      if (!edited("turbines-clips-before-the-sum")) clip_grad_norm_(parameters, kMostNorm);
      optimizer.step();
      ++updates;
    }
    double error = 0;
    if (edited("turbines-rank-zero-validates")) {
      auto result = at::zeros({1}, at::kDouble);
      if (rank == 0) result.fill_(errors_on(net, whole_validation).value());
      broadcast(*group, result);
      error = result.item<double>();
    } else {
      const auto own = errors_on(net, validation);
      const auto every = reduce_metric(*group, own);
      error = edited("turbines-rate-by-own-error") ? own.value() : every.value();
    }
    report.numbers["validation"].push_back(error);
    if (error > kBetter * best) {
      rate /= 2;
      set_rate(rate);
    }
    best = std::min(best, error);
    if (rank == 0) std::cout << "epoch " << epoch << ": " << error << ", rate " << rate << "\n";
  }
  report.held_out = reduce_metric(*group, errors_on(net, joined(to_test))).value();
  report.numbers["rate"] = {rate};
  if (rank == 0) std::cout << "tested " << report.held_out << "\n";
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
