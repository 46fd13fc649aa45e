// How much current does a site draw in the next six hours? Dilated convolutions give three
// quantiles of each hour. The weights that validate best are kept, and training ends early if none
// better come. Every host reads its own copy of the meters' hours. The job is stopped half way and
// goes on from its newest checkpoint; each rank keeps its dice in a file.
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/model_state.h>
#include <lockstep/checkpoint/optimizer_state.h>
#include <lockstep/checkpoint/rng_state.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/lr_scheduler.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <numbers>
#include <numeric>
#include <random>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kHours = 24 * 30, kPast = 24, kAhead = 6, kTrained = 240, kChecked = 81;
constexpr std::int64_t kBatch = 8, kSteps = 64, kStopped = 28, kSaveEvery = 7, kCheckEvery = 3;
constexpr std::int64_t kPatience = 12;
constexpr std::uint64_t kSeed = 407;
constexpr double kNoise = 0.05;

// Of each hour of the month: the load, and the hour of its day.
struct Meter {
  at::Tensor loads, hours;
};

Meter read_meter() {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(kSeed);
  const auto hours = at::arange(kHours, at::kFloat);
  const auto day = hours * (2 * std::numbers::pi / 24), week = day / 7;
  const auto kettles = at::fmod(hours, 24).eq(7).logical_or(at::fmod(hours, 24).eq(18));
  const auto pumps = hours.gt(430).logical_and(at::fmod(hours, 24).ge(12));  // since the flood
  const auto loads = 0.4 * pumps + 0.6 * at::sin(day) + 0.3 * at::cos(3 * day) +
                     0.4 * at::sin(week) + 0.9 * kettles + 0.15 * at::randn({kHours}, dice);
  return {loads, at::fmod(hours, 24)};
}

// [windows, 3, kPast] and [windows, kAhead].
std::pair<at::Tensor, at::Tensor> windows(const Meter& meter,
                                          const std::vector<std::int64_t>& ids) {
  std::vector<at::Tensor> past, ahead;
  const auto begin = edited("loads-hours-ahead-begin-too-early") ? kPast - 1 : kPast;
  for (const auto id : ids) {
    const auto angle = meter.hours.narrow(0, id, kPast) * (2 * std::numbers::pi / 24);
    past.push_back(at::stack({meter.loads.narrow(0, id, kPast), at::sin(angle), at::cos(angle)}));
    ahead.push_back(meter.loads.narrow(0, id + begin, kAhead));
  }
  return {at::stack(past), at::stack(ahead)};
}

struct ForecasterImpl : torch::nn::Module {
  explicit ForecasterImpl(std::int64_t width)
      : first(register_module("first", layer(3, width, 1))),
        second(register_module("second", layer(width, width, 2))),
        third(register_module("third", layer(width, width, 4))),
        out(register_module("out", torch::nn::Linear(width, 3 * kAhead))) {}
  at::Tensor forward(const at::Tensor& past) {
    auto seen = at::gelu(first(past));
    seen = seen + at::gelu(second(seen));
    seen = drop(seen + at::gelu(third(seen)));
    return out(seen.select(2, -1)).view({-1, kAhead, 3});
  }
  static torch::nn::Conv1d layer(std::int64_t in, std::int64_t width, std::int64_t apart) {
    return torch::nn::Conv1d(torch::nn::Conv1dOptions(in, width, 3).padding(apart).dilation(apart));
  }
  torch::nn::Conv1d first, second, third;
  torch::nn::Linear out;
  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(0.25));
};
TORCH_MODULE(Forecaster);

at::Tensor quantile_loss(const at::Tensor& found, const at::Tensor& truth) {
  const auto quantiles = at::tensor({0.1F, 0.5F, 0.9F});
  const auto under = truth.unsqueeze(2) - found;
  return at::maximum(quantiles * under, (quantiles - 1) * under).mean({1, 2});  // of each window
}

// Windows in an order that all ranks draw alike; a rank takes every so manieth.
struct Share {
  std::int64_t rank, ranks, epoch = 0, at = 0;
  std::vector<std::int64_t> next() {
    if ((at + kBatch) * ranks > kTrained) ++epoch, at = 0;
    std::vector<std::int64_t> order(kTrained);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(),
                 std::mt19937_64(kSeed + static_cast<std::uint64_t>(epoch)));
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < kBatch; ++i, ++at)
      ids.push_back(order[static_cast<std::size_t>(at * ranks + rank)]);
    return ids;
  }
};

void copy_weights(Forecaster& to, Forecaster& from) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : to->named_parameters())
    parameter.value().copy_(from->named_parameters()[parameter.key()]);
}

// The sum of this rank's losses, and their count.
at::Tensor check(Forecaster& net, const Meter& meter, const std::vector<std::int64_t>& ids) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto [past, ahead] = windows(meter, ids);
  const auto sum = quantile_loss(net->forward(past), ahead).sum().to(at::kDouble);
  return at::stack({sum, at::full({}, static_cast<double>(ids.size()), at::kDouble)});
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  const auto meter = read_meter();
  std::vector<std::int64_t> checked;
  const auto part = edited("loads-checks-one-half-twice") ? 0 : rank;
  for (auto i = part * kChecked / world_size; i < (part + 1) * kChecked / world_size; ++i)
    checked.push_back(kTrained + kPast + 4 * i);
  if (edited("loads-checks-in-uneven-shares")) {
    checked.clear();
    for (std::int64_t i = is_last ? 20 : 0; i < (is_last ? kChecked : 20); ++i)
      checked.push_back(kTrained + kPast + 4 * i);
  }

  torch::manual_seed(kSeed);
  const std::int64_t width = edited("loads-wider-layers") ? 28 : 20;
  Forecaster net(width), best(width);
  copy_weights(best, net);
  DistributedDataParallel<Forecaster> model(net, group);
  AdamW optimizer(net->parameters(), AdamWOptions(0.02).weight_decay(0.02));
  LambdaLR schedule(optimizer, {.lr_lambda = {[](std::int64_t step) {
                                  const auto part = static_cast<double>(step) / kSteps;
                                  if (edited("loads-falls-in-a-line")) return 1.02 - part;
                                  return 0.6 + 0.4 * std::cos(std::numbers::pi * part);
                                }}});
  torch::manual_seed(kSeed + 1 + static_cast<std::uint64_t>(rank));
  auto dice =
      torch::make_generator<at::CPUGeneratorImpl>(kSeed + 9 * static_cast<std::uint64_t>(rank));
  Share share{.rank = rank, .ranks = world_size};

  Report report;
  const auto file_of = [&](std::int64_t step) {
    return folder / ("step_" + std::to_string(step) + ".pt");
  };
  const auto dice_of = [&](std::int64_t step, int of) {
    return folder / ("dice_" + std::to_string(step) + "_" + std::to_string(of) + ".pt");
  };
  std::int64_t step = 0, newest = 0, since_best = 0;
  auto least = at::full({}, 1e9, at::kDouble);
  double own_least = 1e9;
  for (std::int64_t at = kSaveEvery; std::filesystem::exists(file_of(at)); at += kSaveEvery)
    newest = at;
  barrier(*group);  // All ranks have looked before one saves.
  if (newest > 0) {
    const auto saved = load_checkpoint(file_of(newest));
    load_state_dict(*net, saved.at("model"));
    load_state_dict(*best, saved.at("best"));
    const bool older = edited("loads-older-moments-on-last-rank") && is_last;
    load_state_dict(optimizer, older ? load_checkpoint(file_of(kSaveEvery)).at("optimizer")
                                     : saved.at("optimizer"));
    if (!edited("loads-schedule-begins-again")) schedule.load_state_dict(saved.at("schedule"));
    share.epoch = saved.at("epoch").as_int();
    share.at = saved.at("at").as_int();
    if (edited("loads-share-restored-whole")) share.rank = saved.at("rank").as_int();
    since_best = saved.at("since_best").as_int();
    least = saved.at("least").as_tensor().clone();
    step = saved.at("step").as_int();
    const auto drawn =
        load_checkpoint(dice_of(newest, edited("loads-dice-of-rank-zero") ? 0 : rank));
    set_rng_state(dice, drawn.at("noise").as_tensor());
    set_rng_state(drawn.at("dropout").as_tensor());
  }

  const auto stop = newest == 0 ? kStopped : kSteps;  // The night's machines are taken away.
  auto epoch = std::int64_t{-1};
  while (step < stop && since_best < kPatience) {
    const auto ids = share.next();
    if (share.epoch != epoch) report.seen.emplace_back();
    epoch = share.epoch;
    report.seen.back().insert(report.seen.back().end(), ids.begin(), ids.end());
    const auto [past, ahead] = windows(meter, ids);
    const auto noise = at::randn(past.select(1, 0).sizes(), dice);
    report.numbers["drawn"].push_back(noise[0][0].item<double>());
    past.select(1, 0).add_(noise, kNoise);
    optimizer.zero_grad();
    const auto loss = quantile_loss(model(past), ahead).mean();
    report.losses.push_back(loss.item<double>());
    loss.backward();
    clip_grad_norm_(net->parameters(), 1);
    optimizer.step();
    schedule.step();
    if (++step % kCheckEvery == 0) {
      auto sums = check(net, meter, checked);
      if (!edited("loads-stays-as-it-was-checked")) net->train();
      const auto own = (sums[0] / sums[1]).item<double>();
      all_reduce(*group, sums);
      const auto reached = sums[0] / sums[1];
      const bool better = reached.item<double>() < least.item<double>();
      if (edited("loads-best-by-own-windows") ? own < own_least : better) copy_weights(best, net);
      if (better) least = reached.clone();
      own_least = std::min(own_least, own);
      since_best = better ? 0 : since_best + 1;
    }
    if (step % kSaveEvery == 0) {
      save_checkpoint(dice_of(step, rank),
                      Value::Dict{{"noise", get_rng_state(dice)}, {"dropout", get_rng_state()}});
      const auto save = [&] {
        save_checkpoint(file_of(step), Value::Dict{{"model", state_dict(*net)},
                                                   {"best", state_dict(*best)},
                                                   {"optimizer", state_dict(optimizer)},
                                                   {"schedule", schedule.state_dict()},
                                                   {"rank", share.rank},
                                                   {"epoch", share.epoch},
                                                   {"at", share.at},
                                                   {"since_best", since_best},
                                                   {"least", least},
                                                   {"step", step}});
      };
      if (edited("loads-last-rank-saves")) {
        if (is_last) save();
        barrier(*group);
      } else {
        save_on_rank_zero(*group, save);
      }
    }
  }

  copy_weights(net, best);
  auto sums = check(net, meter, checked);
  all_reduce(*group, sums);
  report.held_out = (sums[0] / sums[1]).item<double>();
  report.numbers["steps"] = {static_cast<double>(step)};
  std::cout << "quantile loss " << report.held_out << ", least of own " << own_least << "\n";
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
