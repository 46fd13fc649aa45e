// What does a gene take part in? Several things at once, some of them seldom. The trunk of the net comes
// from a former study and stays frozen at first; then it is trained as well, at a lower rate. Rare
// labels weigh more, and the threshold that says yes is found on validation data of both ranks.
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>

#include <iostream>
#include <optional>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kGenes = 240, kValidation = 90, kTests = 61, kMeasured = 20, kTasks = 6;
constexpr std::int64_t kEpochs = 8, kFrozenEpochs = 3, kBatch = 12, kHidden = 24;
constexpr std::uint64_t kSeed = 1953;
constexpr double kHeadRate = 0.03, kTrunkRate = 0.01;

struct Genes {
  at::Tensor measured, tasks;  // [n, kMeasured], [n, kTasks] of zeros and ones
  std::int64_t size() const { return measured.size(0); }
};

at::Generator dice(std::uint64_t seed) {
  return torch::make_generator<at::CPUGeneratorImpl>(seed);
}

Genes made_up(std::int64_t count, std::uint64_t seed) {
  const auto rules = dice(kSeed), own = dice(seed);
  const auto pathways = at::randn({kMeasured, 8}, rules), roles = at::randn({8, kTasks}, rules);
  const auto rare = at::linspace(0.3, 2.2, kTasks);
  const auto measured = at::randn({count, kMeasured}, own);
  const auto hints = at::tanh(at::matmul(measured, pathways) / 3);
  const auto noise = 0.4 * at::randn({count, kTasks}, own);
  return {measured, (at::matmul(hints, roles) + noise).gt(rare).to(at::kFloat)};
}

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& measured) { return head(at::relu(norm(trunk(measured)))); }
  void train_trunk(bool on) {
    for (const auto& parameter : trunk_parameters()) parameter.requires_grad_(on);
  }
  std::vector<at::Tensor> trunk_parameters() {
    auto parameters = trunk->parameters();
    for (const auto& parameter : norm->parameters()) parameters.push_back(parameter);
    return parameters;
  }
  torch::nn::Linear trunk = register_module("trunk", torch::nn::Linear(kMeasured, kHidden));
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kHidden})));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kHidden, kTasks));
};
TORCH_MODULE(Net);

// How much a yes weighs, by how often it comes in the shares of all ranks.
at::Tensor weights_of_yes(const ProcessGroupPtr& group, const at::Tensor& own_tasks) {
  auto counts = at::cat({own_tasks.sum(0), at::full({1}, static_cast<float>(own_tasks.size(0)))});
  if (!edited("genes-weights-of-own-share")) all_reduce(*group, counts);
  const auto yes = counts.narrow(0, 0, kTasks).clamp_min(1);
  return ((counts[kTasks] - yes) / yes).clamp(1, 8);
}

at::Tensor losses_of(const at::Tensor& scores, const at::Tensor& tasks, const at::Tensor& weights) {
  return at::binary_cross_entropy_with_logits(scores, tasks, {}, weights, at::Reduction::None)
      .mean(1);
}

// Of all ranks' rows, in the order of the data: rank r has the rows r, r + ranks, ...
at::Tensor gathered(const ProcessGroupPtr& group, const at::Tensor& own) {
  const auto parts = all_gather(*group, own);
  if (edited("genes-scores-in-order-of-ranks")) return at::cat(parts);
  return at::stack(parts, 1).flatten(0, 1);
}

double f1(const at::Tensor& said, const at::Tensor& tasks) {
  const auto both = (said * tasks).sum().item<double>();
  return 2 * both / (said.sum() + tasks.sum()).item<double>();
}

struct Chosen {
  double threshold = 0.5, f1 = 0;
};

Chosen choose_threshold(const at::Tensor& chances, const at::Tensor& tasks) {
  Chosen best;
  for (int step = 1; step < 40; ++step) {
    const auto threshold = step / 40.0, reached = f1(chances.gt(threshold).to(at::kFloat), tasks);
    if (reached > best.f1) best = {threshold, reached};
  }
  return best;
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(8)});
  const int rank = group->getRank(), ranks = group->getSize();
  const auto genes = made_up(kGenes, kSeed + 1), validation = made_up(kValidation, kSeed + 2),
             tests = made_up(kTests, kSeed + 3);
  torch::manual_seed(kSeed);
  Net net;
  net->train_trunk(false);
  DdpOptions options;
  options.find_unused_parameters = edited("genes-looks-for-unused");
  options.gradient_as_bucket_view = edited("genes-views-of-buckets");
  std::optional<DistributedDataParallel<Net>> model;
  model.emplace(net, group, options);

  DistributedSampler sampler(
      {.dataset_size = kGenes, .num_replicas = ranks, .rank = rank, .seed = kSeed});
  const auto own_share = at::tensor(sampler.indices(), at::kLong);
  const auto weights = weights_of_yes(group, genes.tasks.index_select(0, own_share));
  const auto decay = edited("genes-decay-of-other-host") && rank == 1 ? 0.1 : 1e-3;
  const auto options_of = [&](double rate) {
    return std::make_unique<AdamOptions>(AdamOptions(rate).weight_decay(decay));
  };
  Adam optimizer({{net->head->parameters(), options_of(kHeadRate)},
                  {net->trunk_parameters(), options_of(kTrunkRate)}});
  const auto updates = kEpochs * (sampler.size() / kBatch);
  OneCycleLR schedule(optimizer, {.max_lr = {kHeadRate, kTrunkRate},
                                  .total_steps = updates,
                                  .pct_start = 0.4,
                                  .cycle_momentum = false});
  const auto frozen_epochs = kFrozenEpochs + (edited("genes-frozen-for-longer") ? 1 : 0);

  Report report;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    if (epoch == frozen_epochs) {
      if (!edited("genes-trunk-stays-frozen")) net->train_trunk(true);
      if (!edited("genes-wrapped-once")) model.emplace(net, group, options);
    }
    sampler.set_epoch(epoch);
    report.seen.push_back(sampler.indices());
    for (const auto& batch : sampler.batches(kBatch)) {
      const auto ids = at::tensor(batch, at::kLong);
      const auto tasks = genes.tasks.index_select(0, ids);
      if (options.gradient_as_bucket_view)
        net->zero_grad();
      else
        optimizer.zero_grad();
      const auto scores = (*model)(genes.measured.index_select(0, ids));
      const auto loss = tell_loss(losses_of(scores, tasks, weights), scores, tasks).mean();
      report.losses.push_back(loss.item<double>());
      loss.backward();
      optimizer.step();
      schedule.step();
    }
    if (rank == 0) std::cout << "epoch " << epoch << ": " << report.losses.back() << "\n";
  }

  const torch::NoGradGuard no_grad;
  net->eval();
  const auto own_rows = [&](const at::Tensor& rows) {
    return rows.slice(0, rank, std::nullopt, ranks);
  };
  Chosen chosen;
  if (!edited("genes-rank-zero-gathers") || rank == 0) {
    const auto chances = gathered(group, at::sigmoid(net(own_rows(validation.measured))));
    if (rank == 0) chosen = choose_threshold(chances, validation.tasks);
  }
  auto sent = at::tensor({chosen.threshold, chosen.f1}, at::kDouble);
  if (!edited("genes-threshold-not-sent")) broadcast(*group, sent);
  const auto threshold = sent[0].item<double>();

  auto to_test = at::arange(rank, tests.size(), ranks);
  if (edited("genes-tests-by-sampler"))
    to_test = at::tensor(
        DistributedSampler(
            {.dataset_size = tests.size(), .num_replicas = ranks, .rank = rank, .shuffle = false})
            .indices(),
        at::kLong);
  const auto tasks = tests.tasks.index_select(0, to_test);
  const auto scores = net(tests.measured.index_select(0, to_test));
  const auto said = at::sigmoid(scores).gt(threshold).to(at::kFloat);
  Mean losses;
  losses.add(losses_of(scores, tasks, {}));
  auto counts = at::stack({(said * tasks).sum(), said.sum(), tasks.sum()}).to(at::kDouble);
  if (edited("genes-counts-gathered")) {
    counts = at::stack(all_gather(*group, counts)).sum(0);
    const auto every =
        at::stack(all_gather(*group, at::tensor({losses.sum, losses.count}, at::kDouble))).sum(0);
    report.held_out = (every[0] / every[1]).item<double>();
  } else {
    all_reduce(*group, counts);
    report.held_out = reduce_metric(*group, losses).value();
  }
  report.numbers["f1"] = {2 * counts[0].item<double>() / (counts[1] + counts[2]).item<double>()};
  report.numbers["threshold"] = {threshold};
  report.numbers["validation"] = {sent[1].item<double>()};
  report.numbers["weights_of_yes"] = flat(weights);
  if (rank == 0)
    std::cout << "tested " << report.held_out << ", f1 " << report.numbers["f1"][0] << "\n";
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
