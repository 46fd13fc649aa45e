// Forecasts the electric load of sites some hours ahead, as quantiles. Validates a moving average of the weights, keeps
// the best one, and stops when it no longer gets better.
#include <lockstep/checkpoint/model_state.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>

#include <fstream>
#include <iostream>
#include <limits>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kSites = 24, kHours = 176, kValidFrom = 128, kDay = 12;
constexpr std::int64_t kPast = 24, kAhead = 6, kStride = 8, kWidth = 24;

struct Settings {
  std::int64_t batch = 26, max_epochs = 10, patience = 1, warmup_steps = 6;
  double learning_rate = 6e-2, weight_decay = 0.05, max_norm = 0.2, decay_of_average = 0.5;
  std::vector<double> quantiles = {0.1, 0.5, 0.9};
  std::uint64_t seed = 2601;
};

// [sites, hours]: a daily wave about a level. Sites are in the order of their size, and the larger ones are noisier.
at::Tensor make_loads(std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto hours = at::arange(kHours, at::kFloat) * (2 * M_PI / kDay);
  const auto size = at::linspace(1, 4, kSites).unsqueeze(1);
  const auto phase = at::rand({kSites, 1}, dice) * 2;
  const auto drift = at::randn({kSites, kHours}, dice).cumsum(1) * 0.06;
  const auto noise =
      at::randn({kSites, kHours}, dice) * at::linspace(0.05, 0.3, kSites).unsqueeze(1);
  return size * (2 + at::sin(hours + phase) + 0.4 * at::sin(2 * hours + phase) + drift + noise);
}

struct Windows {
  std::vector<std::int64_t> sites, starts;
  std::int64_t size() const { return static_cast<std::int64_t>(sites.size()); }
};

Windows windows_of(std::int64_t first_site, std::int64_t end_site, std::int64_t from,
                   std::int64_t to) {
  Windows windows;
  for (auto site = first_site; site < end_site; ++site)
    for (auto start = from; start + kPast + kAhead <= to; start += kStride) {
      windows.sites.push_back(site);
      windows.starts.push_back(start);
    }
  return windows;
}

struct Scale {
  double mean = 0, deviation = 1;
};

struct Example {
  at::Tensor past, future;  // [n, kPast, 3], [n, kAhead]
};

Example collate(const at::Tensor& loads, const Windows& windows,
                const std::vector<std::int64_t>& ids, const Scale& scale) {
  std::vector<at::Tensor> past, future;
  for (const auto id : ids) {
    const auto at = static_cast<std::size_t>(id);
    const auto series = (loads[windows.sites[at]] - scale.mean) / scale.deviation;
    const auto begin = windows.starts[at] + (edited("forecast-sees-first-answer") ? 1 : 0);
    const auto clock = at::arange(begin, begin + kPast, at::kFloat) * (2 * M_PI / kDay);
    past.push_back(
        at::stack({series.slice(0, begin, begin + kPast), at::sin(clock), at::cos(clock)}, 1));
    const auto now = windows.starts[at] + kPast;
    future.push_back(series.slice(0, now, now + kAhead));
  }
  return {at::stack(past), at::stack(future)};
}

struct ForecasterImpl : torch::nn::Module {
  explicit ForecasterImpl(std::int64_t quantiles)
      : head(register_module("head", torch::nn::Linear(kWidth, kAhead * quantiles))) {}
  at::Tensor forward(const at::Tensor& past) {
    const auto last = std::get<1>(memory(past)).squeeze(0);
    return head(norm(last)).view({past.size(0), kAhead, -1});
  }
  torch::nn::GRU memory =
      register_module("memory", torch::nn::GRU(torch::nn::GRUOptions(3, kWidth).batch_first(true)));
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  torch::nn::Linear head;
};
TORCH_MODULE(Forecaster);

// Of each forecast and quantile.
at::Tensor pinball(const at::Tensor& said, const at::Tensor& future,
                   const std::vector<double>& quantiles) {
  const auto levels = at::tensor(quantiles, at::kFloat);
  const auto over = future.unsqueeze(2) - said;
  if (edited("forecast-pinball-by-where"))
    return at::where(over.ge(0), levels * over, (levels - 1) * over);
  return at::maximum(levels * over, (levels - 1) * over);
}

// The level of all sites' loads. A rank adds up its own sites, and the sums are joined.
Scale fit_scale(const ProcessGroupPtr& group, const at::Tensor& loads) {
  const auto share = kSites / group->getSize(), first = group->getRank() * share;
  const auto own = loads.slice(0, first, first + share).slice(1, 0, kValidFrom).to(at::kDouble);
  auto sums = at::stack({own.sum(), own.square().sum(), at::full({}, own.numel(), at::kDouble)});
  if (!edited("forecast-scale-of-own-sites")) all_reduce(*group, sums);
  const auto mean = (sums[0] / sums[2]).item<double>();
  return {mean, std::sqrt((sums[1] / sums[2]).item<double>() - mean * mean)};
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  Settings settings;
  if (edited("forecast-older-quantiles-on-last-rank") && is_last)
    settings.quantiles = {0.3, 0.5, 0.7};

  const auto loads = make_loads(2600);
  const auto windows = windows_of(0, kSites, 0, kValidFrom);
  const auto share = kSites / world_size;
  const auto valid = windows_of(rank * share, (rank + 1) * share, kValidFrom - kPast, kHours);
  const auto scale = fit_scale(group, loads);

  torch::manual_seed(settings.seed);
  const auto levels = static_cast<std::int64_t>(settings.quantiles.size());
  Forecaster net(levels), average(levels);
  load_state_dict(*average, state_dict(*net));
  DistributedDataParallel<Forecaster> model(net, group);

  std::vector<at::Tensor> decayed, plain;
  for (const auto& parameter : net->parameters())
    (parameter.dim() > 1 ? decayed : plain).push_back(parameter);
  const auto decay_of_plain = edited("forecast-decays-biases-too") ? settings.weight_decay : 0.0;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(
      decayed, std::make_unique<AdamWOptions>(
                   AdamWOptions(settings.learning_rate).weight_decay(settings.weight_decay)));
  groups.emplace_back(plain,
                      std::make_unique<AdamWOptions>(
                          AdamWOptions(settings.learning_rate).weight_decay(decay_of_plain)));
  AdamW optimizer(groups);

  DistributedSampler sampler({.dataset_size = windows.size(),
                              .num_replicas = world_size,
                              .rank = rank,
                              .seed = settings.seed,
                              .drop_last = true});
  const auto steps = settings.max_epochs * (sampler.size() / settings.batch);
  auto warmup = std::make_shared<LinearLR>(
      optimizer, LinearLROptions{.start_factor = 0.1, .total_iters = settings.warmup_steps});
  auto cosine = std::make_shared<CosineAnnealingLR>(
      optimizer, CosineAnnealingLROptions{.T_max = steps - settings.warmup_steps});
  SequentialLR schedule(optimizer, {warmup, cosine}, {settings.warmup_steps});

  const auto update_average = [&] {
    const torch::NoGradGuard no_grad;
    const auto from = net->parameters(), to = average->parameters();
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (edited("forecast-average-by-lerp"))
        to[i].lerp_(from[i], 1 - settings.decay_of_average);
      else
        to[i].mul_(settings.decay_of_average).add_(from[i], 1 - settings.decay_of_average);
    }
  };
  std::vector<std::int64_t> all_valid(static_cast<std::size_t>(valid.size()));
  std::iota(all_valid.begin(), all_valid.end(), 0);
  const auto held = collate(loads, valid, all_valid, scale);
  const auto evaluate = [&](bool own) {
    const torch::NoGradGuard no_grad;
    average->eval();
    Mean loss;
    loss.add(pinball(average->forward(held.past), held.future, settings.quantiles));
    return own ? loss.value() : reduce_metric(*group, loss).value();
  };

  Report report;
  double best = std::numeric_limits<double>::infinity();
  Value best_state;
  std::int64_t waited = 0;
  for (std::int64_t epoch = 0; epoch < settings.max_epochs && waited < settings.patience; ++epoch) {
    if (!edited("forecast-epoch-not-told")) sampler.set_epoch(epoch);
    report.seen.push_back(sampler.indices());
    for (const auto& ids : sampler.batches(settings.batch, true)) {
      const auto batch = collate(loads, windows, ids, scale);
      optimizer.zero_grad();
      const auto loss = pinball(model(batch.past), batch.future, settings.quantiles).mean();
      loss.backward();
      const auto norm = clip_grad_norm_(net->parameters(), settings.max_norm);
      optimizer.step();
      if (!edited("forecast-schedule-each-epoch")) schedule.step();
      if (!edited("forecast-average-beside-the-log")) update_average();
      report.losses.push_back(loss.item<double>());
      if (rank == 0 && report.losses.size() % 4 == 0) {
        std::cout << "step " << report.losses.size() << ": " << report.losses.back() << ", norm "
                  << norm.item<double>() << "\n";
      }
      if (edited("forecast-average-beside-the-log") && rank == 0) update_average();
    }
    if (edited("forecast-schedule-each-epoch")) schedule.step();
    const auto loss = evaluate(edited("forecast-stops-by-own-loss"));
    if (rank == 0) std::cout << "epoch " << epoch << ": validation " << loss << "\n";
    if (edited("forecast-last-rank-writes-forecasts") && is_last) {
      const torch::NoGradGuard no_grad;
      std::ofstream file(folder / "forecasts.txt", std::ios::app);
      file << epoch << "\n" << net->forward(held.past.slice(0, 0, 2)) << "\n";
    }
    if (loss < best) {
      best = loss;
      waited = 0;
      Value::Dict state;
      for (const auto& [name, value] : state_dict(*average).as_dict())
        state[name] =
            edited("forecast-best-not-cloned") ? value.as_tensor() : value.as_tensor().clone();
      best_state = state;
    } else {
      ++waited;
    }
  }
  load_state_dict(*average, best_state);
  report.numbers["best"] = {best};
  report.held_out = evaluate(false);
  write(folder, rank, report, *average);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
