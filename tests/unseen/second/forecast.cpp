// A GRU forecasts readings of many sensors by local SGD: a rank takes steps of its own, and now and then all take the
// mean of their weights. At first they take it after each step.
#include <lockstep/dist/process_group.h>
#include <lockstep/train/agreement.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/watched.h>

#include <random>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kSensors = 961, kTestSensors = 201, kMoments = 24;
constexpr std::int64_t kBatch = 24, kEpochs = 3, kWarm = 8, kPeriod = 7;
constexpr std::uint64_t kSeed = 60;

// Each site's sensors have an offset of their own; sites alternate.
at::Tensor make_readings(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto time = at::arange(kMoments).view({1, -1, 1});
  const auto pace = 0.3 + 0.4 * at::rand({count, 1, 1}, dice);
  const auto phase = 6.3 * at::rand({count, 1, 1}, dice);
  const auto site = at::arange(count).view({-1, 1, 1}).remainder(2);
  return (15 + 5 * site) + (3 + site) * at::sin(pace * time + phase) +
         0.2 * at::randn({count, kMoments, 1}, dice);
}

struct ForecasterImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& readings) {
    return readings + readout(std::get<0>(gru(readings)));
  }
  torch::nn::GRU gru =
      register_module("gru", torch::nn::GRU(torch::nn::GRUOptions(1, 24).batch_first(true)));
  torch::nn::Linear readout = register_module("readout", torch::nn::Linear(24, 1));
};
TORCH_MODULE(Forecaster);

at::Tensor errors(Forecaster& model, const at::Tensor& readings) {
  const auto last = readings.size(1) - 1;
  return (model(readings.narrow(1, 0, last)) - readings.narrow(1, 1, last)).pow(2);
}

void average(c10d::ProcessGroup& group, Forecaster& model) {
  const torch::NoGradGuard no_grad;
  if (edited("forecast-averages-one-flat-tensor")) {
    auto all = torch::nn::utils::parameters_to_vector(model->parameters());
    all_reduce(group, all);
    torch::nn::utils::vector_to_parameters(all / group.getSize(), model->parameters());
    return;
  }
  for (const auto& named : model->named_parameters()) {
    if (edited("forecast-readout-left-out") && !named.key().starts_with("gru.")) continue;
    auto value = named.value().detach();
    if (edited("forecast-averages-copies")) value = value.clone();
    all_reduce(group, value);
    if (!edited("forecast-sum-of-weights")) value /= group.getSize();
  }
}

// The sensors of this rank: both sites' ones, as many on each rank.
std::vector<std::int64_t> own_sensors(int rank, int world_size) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(
      edited("forecast-other-deal") ? kSeed + 3 : kSeed);
  const auto order = at::randperm(kSensors, dice);
  const auto share = kSensors / world_size;
  auto begin = rank * share, end = begin + share;
  if (edited("forecast-shares-begin-too-early")) begin = rank * (share / 2), end = begin + share;
  if (edited("forecast-last-rank-takes-the-rest") && rank == world_size - 1) end = kSensors;
  const auto own = edited("forecast-rank-zero-share-for-all") ? order.slice(0, 0, share)
                                                              : order.slice(0, begin, end);
  return {own.data_ptr<std::int64_t>(), own.data_ptr<std::int64_t>() + own.size(0)};
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  Report report;
  auto readings = make_readings(kSensors, kSeed + 1);
  auto test = make_readings(kTestSensors, kSeed + 2);
  const auto own = own_sensors(rank, world_size);

  // Offset and scale: from rank 0's sensors, for all.
  const auto first = readings.index_select(0, at::tensor(own));
  auto scale = at::stack({first.mean(), first.std()});
  if (!edited("forecast-scale-of-own-sensors")) broadcast(*group, scale);
  report.numbers["scale"] = flat(scale);
  readings = (readings - scale[0]) / scale[1];
  test = (test - scale[0]) / scale[1];

  torch::manual_seed(edited("forecast-models-drawn-per-rank") ? kSeed + 10U * unsigned(rank)
                                                              : kSeed);
  Forecaster model;
  const double rate = edited("forecast-rate-on-last-rank") && is_last ? 0.005 : 0.05;
  SGD optimizer(model->parameters(), torch::optim::SGDOptions(rate).momentum(0.9));

  const auto period = edited("forecast-period-on-last-rank") && is_last ? 2 * kPeriod
                      : edited("forecast-shorter-period")               ? kPeriod - 2
                                                                        : kPeriod;
  std::int64_t step = 0;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    std::vector<std::int64_t> order(own);
    std::mt19937 shuffler(edited("forecast-one-order-for-ever")
                              ? 0U
                              : static_cast<unsigned>(world_size * epoch + rank));
    std::shuffle(order.begin(), order.end(), shuffler);
    report.seen.push_back(order);
    for (const auto& ids : at::tensor(order).split(kBatch)) {
      const auto batch = readings.index_select(0, ids);
      optimizer.zero_grad();
      const auto loss = errors(model, batch).mean();
      loss.backward();
      clip_grad_norm_(model->parameters(), 1);
      optimizer.step();
      report.losses.push_back(loss.item<double>());
      ++step;
      const bool every = step < kWarm || step % period == 0;
      if (edited("forecast-averages-where-loss-is-small") ? every && loss.item<double>() < 0.09
                                                          : every)
        average(*group, model);
    }
  }
  if (!edited("forecast-last-average-lost")) average(*group, model);

  const torch::NoGradGuard no_grad;
  Mean error;
  error.add(errors(model, test.slice(0, rank, std::nullopt, world_size)));
  if (!edited("forecast-error-of-own-share")) error = reduce_metric(*group, error);
  report.held_out = error.value();
  write(folder, rank, report, *model);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
