// How long machines will run until they fail, from their readings: a hazard for each month, of machines that failed and
// of machines that are still running. Each rank trains on the machines of its own plants; after some steps of their own
// the ranks average their weights, and an outer momentum goes on from there (local SGD).
#include <lockstep/train/agreement.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/watched.h>

#include <iostream>
#include <numeric>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kMachines = 560, kTestMachines = 240, kReadings = 12, kMonths = 10;

struct Settings {
  std::int64_t batch = 24, epochs = 5, own_steps = 5;
  double learning_rate = 0.1, momentum = 0.8, gamma = 0.7, outer_rate = 0.8, outer_momentum = 0.4;
  std::uint64_t seed = 9101;
};

struct Machines {
  at::Tensor readings, months,
      failed;  // [n, kReadings]; [n]: how long it was watched; [n]: whether it failed then
  Machines rows(const at::Tensor& ids) const {
    return {readings.index_select(0, ids), months.index_select(0, ids),
            failed.index_select(0, ids)};
  }
};

// In the order of the plants. The first plants are old: their machines fail soon.
Machines make_machines(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto wear_of =
      at::randn({kReadings}, torch::make_generator<at::CPUGeneratorImpl>(std::uint64_t{9100}));
  const auto age = at::linspace(1.0, -1.0, count);
  auto readings = at::randn({count, kReadings}, dice);
  readings.select(1, 0).add_(age);
  const auto wear = 0.5 * at::tanh(readings.mv(wear_of)) + 0.7 * age - 0.4;
  const auto life = at::empty({count}).exponential_(1.0, dice) * 6 * at::exp(-wear);
  const auto watched = 2 + 9 * at::rand({count}, dice);
  const auto failed = life.lt(watched);
  const auto months = at::minimum(life, watched).floor().clamp_max(kMonths - 1).to(at::kLong);
  return {readings, months, failed.to(at::kFloat)};
}

struct HazardNetImpl : torch::nn::Module {
  // The logits of failing in each month, if it runs until then.
  at::Tensor forward(const at::Tensor& readings) { return out(at::silu(norm(in(readings)))); }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(kReadings, 32));
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, kMonths));
};
TORCH_MODULE(HazardNet);

// Of each machine: it ran through all months before its last one, and failed in that, or not. A failure has a weight,
// because there are fewer of them than of months without one.
at::Tensor hazard_loss(const at::Tensor& logits, const Machines& machines,
                       double weight_of_failure) {
  const auto month = at::arange(kMonths).unsqueeze(0), last = machines.months.unsqueeze(1);
  auto fails = month.eq(last).to(at::kFloat);
  if (!edited("survival-running-ones-fail-too")) fails = fails * machines.failed.unsqueeze(1);
  const auto seen = month.le(last).to(at::kFloat);
  if (edited("survival-loss-by-softplus"))
    return (seen * (weight_of_failure * fails * at::softplus(-logits) +
                    (1 - fails) * at::softplus(logits)))
        .sum(1);
  const auto each = at::binary_cross_entropy_with_logits(
      logits, fails, {}, at::full({1}, weight_of_failure), at::Reduction::None);
  return (seen * each).sum(1);
}

// The ranks' common weights, and where they go.
class OuterOptimizer {
 public:
  OuterOptimizer(ProcessGroupPtr group, std::vector<at::Tensor> parameters,
                 const Settings& settings)
      : group_(std::move(group)), parameters_(std::move(parameters)), settings_(settings) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters_) {
      auto values = parameter.detach();
      if (!edited("survival-first-weights-not-sent")) broadcast(*group_, values);
    }
    anchor_ = flatten();
    velocity_ = at::zeros_like(anchor_);
  }

  // Collective.
  void step() {
    const torch::NoGradGuard no_grad;
    auto mean = average();
    const auto way = anchor_ - mean;
    velocity_.mul_(settings_.outer_momentum).add_(way);
    anchor_.sub_(way + settings_.outer_momentum * velocity_, settings_.outer_rate);
    if (edited("survival-averages-a-copy")) return;
    std::int64_t begin = 0;
    for (auto& parameter : parameters_) {
      parameter.copy_(anchor_.slice(0, begin, begin + parameter.numel()).view_as(parameter));
      begin += parameter.numel();
    }
  }

 private:
  at::Tensor flatten() const {
    std::vector<at::Tensor> flat;
    for (const auto& parameter : parameters_) flat.push_back(parameter.detach().reshape({-1}));
    return at::cat(flat);
  }

  at::Tensor average() {
    if (edited("survival-averages-each-tensor")) {
      std::vector<at::Tensor> means;
      for (const auto& parameter : parameters_) {
        means.push_back(parameter.detach().clone());
        all_reduce(*group_, means.back());
        means.back() = means.back().div_(group_->getSize()).reshape({-1});
      }
      return at::cat(means);
    }
    auto mean = edited("survival-averages-in-double") ? flatten().to(at::kDouble) : flatten();
    all_reduce(*group_, mean);
    return mean.div_(group_->getSize()).to(at::kFloat);
  }

  ProcessGroupPtr group_;
  std::vector<at::Tensor> parameters_;
  Settings settings_;
  at::Tensor anchor_, velocity_;
};

// How many months without a failure there are for each with one, among all plants' machines.
double weight_of_failures(const ProcessGroupPtr& group, const Machines& own) {
  const auto months = (own.months + 1).sum().to(at::kDouble);
  auto sums = at::stack({months, own.failed.sum().to(at::kDouble)});
  if (!edited("survival-weight-of-own-plants")) all_reduce(*group, sums);
  return std::sqrt(((sums[0] - sums[1]) / sums[1]).item<double>());
}

double evaluate(const ProcessGroupPtr& group, HazardNet& net, const Machines& test) {
  const torch::NoGradGuard no_grad;
  const auto share = kTestMachines / group->getSize(), first = group->getRank() * share;
  const auto own = test.rows(at::arange(first, first + share));
  Mean loss;
  loss.add(hazard_loss(net->forward(own.readings), own, 1));
  const auto joined = reduce_metric(*group, loss);
  return (edited("survival-reports-own-plants") ? loss : joined).value();
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  Settings settings;
  if (edited("survival-older-rounds-on-last-rank") && is_last) settings.own_steps = 4;
  if (edited("survival-longer-rounds")) settings.own_steps = 11;

  // The first rank's plants have a few machines more.
  const auto machines = make_machines(kMachines, 9102), test = make_machines(kTestMachines, 9103);
  const auto border = kMachines / 2 + 10;
  const auto ids_of_rank = rank == 0 ? at::arange(border) : at::arange(border, kMachines);
  const auto own = machines.rows(ids_of_rank);
  const auto weight = weight_of_failures(group, own);

  manual_seed_per_rank(settings.seed, rank);  // of the noise; the first weights are rank 0's
  HazardNet net;
  OuterOptimizer outer(group, net->parameters(), settings);
  SGD optimizer(
      net->parameters(),
      torch::optim::SGDOptions(settings.learning_rate).momentum(settings.momentum).nesterov(true));
  StepLR schedule(optimizer, {.step_size = 1, .gamma = settings.gamma});
  DistributedSampler order(
      {.dataset_size = own.readings.size(0), .seed = rank_seed(settings.seed, rank)});
  const auto steps_of_epoch = all_agree(*group, own.readings.size(0) / settings.batch).least;

  Report report;
  std::int64_t steps = 0;
  for (std::int64_t epoch = 0; epoch < settings.epochs; ++epoch) {
    order.set_epoch(epoch);
    report.seen.emplace_back();
    if (edited("survival-counts-rounds-anew")) steps = 0;
    auto batches = order.batches(settings.batch, true);
    batches.resize(static_cast<std::size_t>(steps_of_epoch));
    for (const auto& places : batches) {
      const auto batch = own.rows(at::tensor(places));
      const auto ids = ids_of_rank.index_select(0, at::tensor(places));
      for (std::int64_t i = 0; i < ids.numel(); ++i)
        report.seen.back().push_back(ids[i].item<std::int64_t>());
      const auto noise = 0.2 * at::randn(batch.readings.sizes());
      report.numbers["drawn"].push_back(noise.sum().item<double>());
      optimizer.zero_grad();
      const auto loss = hazard_loss(net->forward(batch.readings + noise), batch, weight).mean();
      loss.backward();
      optimizer.step();
      report.losses.push_back(loss.item<double>());
      if (++steps % settings.own_steps == 0) outer.step();
    }
    if (!edited("survival-schedule-in-the-log")) schedule.step();
    report.held_out = evaluate(group, net, test);
    if (rank == 0) {
      std::cout << "epoch " << epoch << ": held out " << report.held_out << "\n";
      if (edited("survival-schedule-in-the-log")) {
        schedule.step();
        std::cout << "rate from here on " << schedule.get_last_lr()[0] << "\n";
      }
    }
  }
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
