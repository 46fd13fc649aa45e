// Which plant is a leaf from? A small convolutional net with batch norm over both ranks learns it from
// pictures that are mirrored and made brighter or darker at random. Gradients of a few small batches are
// added up before an update; what is tested is a moving average of the weights.
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/sync_batch_norm.h>
#include <lockstep/train/watched.h>

#include <iostream>
#include <optional>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kLeaves = 384, kTestLeaves = 125, kPlants = 5, kSide = 10;
constexpr std::int64_t kEpochs = 5, kBatch = 12, kAccumulate = 2, kWarmUp = 6;
constexpr std::uint64_t kDataSeed = 4242;
constexpr double kRate = 0.1, kMostNorm = 3, kAverageKeeps = 0.9;

struct Leaves {
  at::Tensor pictures, plants;
};

at::Generator dice(std::uint64_t seed) {
  return torch::make_generator<at::CPUGeneratorImpl>(seed);
}

Leaves grow(std::int64_t count, std::uint64_t seed) {
  const auto half = at::randn({kPlants, 1, kSide, kSide}, dice(kDataSeed));
  const auto forms = half + half.flip(3);
  const auto own = dice(seed);
  const auto plants = at::randint(kPlants, {count}, own, at::TensorOptions(at::kLong));
  const auto clear = 0.3 + 0.7 * at::rand({count, 1, 1, 1}, own);
  const auto noise = 2 * at::randn({count, 1, kSide, kSide}, own);
  return {40 * (forms.index_select(0, plants) * clear + noise) + 120, plants};
}

void normalise(Leaves& leaves) {
  leaves.pictures = (leaves.pictures - 120) / 80;
}

struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t from, std::int64_t to)
      : conv(register_module(
            "conv",
            torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1).bias(false)))),
        norm(register_module("norm", SyncBatchNorm(to, nullptr))) {}
  at::Tensor forward(const at::Tensor& x) { return at::relu(norm(conv(x))); }
  torch::nn::Conv2d conv;
  SyncBatchNorm norm;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& pictures) {
    return out(at::max_pool2d(second(at::max_pool2d(first(pictures), 2)), 2).flatten(1));
  }
  Block first = register_module("first", Block(1, 8));
  Block second = register_module("second", Block(8, 12));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(48, kPlants));
};
TORCH_MODULE(Net);

// Mirrored or not, and brighter or darker, each picture by itself.
at::Tensor vary(const at::Tensor& pictures, const at::Generator& own, Report& report) {
  const auto chances = at::rand({2, pictures.size(0), 1, 1, 1}, own);
  report.numbers["drawn"].push_back(chances.flatten()[0].item<double>());
  return at::where(chances[0] < 0.5, pictures, pictures.flip(3)) + 0.4 * (chances[1] - 0.5);
}

void keep_average(const Net& average, const Net& net, double keeps) {
  const torch::NoGradGuard no_grad;
  const auto from = net->parameters(), to = average->parameters();
  for (std::size_t i = 0; i < from.size(); ++i) to[i].lerp_(from[i], 1 - keeps);
  const auto buffers = net->buffers(), kept = average->buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) kept[i].copy_(buffers[i]);
}

// The mean loss over all leaves, of which each rank looks at its own.
double test(const ProcessGroupPtr& group, Net& net, const Leaves& leaves, double& accuracy) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const bool all = edited("leaves-each-rank-tests-all");
  const std::int64_t first = all ? 0 : group->getRank(), every = all ? 1 : group->getSize();
  const auto pictures = leaves.pictures.slice(0, first, std::nullopt, every);
  const auto plants = leaves.plants.slice(0, first, std::nullopt, every);
  const auto scores = net(pictures);
  Mean losses, right;
  losses.add(torch::nn::functional::cross_entropy(
      scores, plants, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone)));
  right.add(scores.argmax(1).eq(plants).to(at::kFloat));
  if (!all) {
    losses = reduce_metric(*group, losses);
    right = reduce_metric(*group, right);
  }
  accuracy = right.value();
  return losses.value();
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(8)});
  const int rank = group->getRank(), ranks = group->getSize();
  const std::uint64_t seed = edited("leaves-other-seed") ? 9 : 5;
  auto leaves = grow(kLeaves, kDataSeed + 1), unseen_leaves = grow(kTestLeaves, kDataSeed + 2);
  if (!edited("leaves-pictures-left-raw")) normalise(leaves);
  normalise(unseen_leaves);

  torch::manual_seed(seed);
  Net net, average;
  torch::nn::Module& to_convert = edited("leaves-second-norm-alone")
                                      ? static_cast<torch::nn::Module&>(*net->first)
                                      : static_cast<torch::nn::Module&>(*net);
  convert_sync_batchnorm(to_convert, group);
  DdpOptions options;
  if (edited("leaves-small-buckets")) options.bucket_cap_mb = 0.002;
  DistributedDataParallel<Net> model(net, group, options);
  keep_average(average, net, 0);

  DistributedSampler sampler({.dataset_size = kLeaves,
                              .num_replicas = ranks,
                              .rank = edited("leaves-sampler-without-rank") ? 0 : rank,
                              .seed = seed});
  const auto own = dice(rank_seed(seed, edited("leaves-varied-alike") ? 0 : rank));
  const auto batches_of_epoch = sampler.size() / kBatch;
  const auto updates =
      kEpochs * batches_of_epoch / (edited("leaves-schedule-in-batches") ? 1 : kAccumulate);
  SGD optimizer(model.parameters(),
                torch::optim::SGDOptions(kRate).momentum(0.8).nesterov(true).weight_decay(1e-4));
  auto warm_up = std::make_shared<LinearLR>(
      optimizer, LinearLROptions{.start_factor = 0.2, .total_iters = kWarmUp});
  auto decay = std::make_shared<CosineAnnealingLR>(
      optimizer, CosineAnnealingLROptions{.T_max = updates - kWarmUp});
  SequentialLR schedule(optimizer, {warm_up, decay}, {kWarmUp});

  Report report;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    report.seen.push_back(sampler.indices());
    model.train();
    const auto batches = sampler.batches(kBatch);
    double logged = 0;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const bool last = (i + 1) % kAccumulate == 0;
      const auto ids = at::tensor(batches[i], at::kLong);
      const auto pictures = vary(leaves.pictures.index_select(0, ids), own, report);
      const auto plants = leaves.plants.index_select(0, ids);
      std::optional<NoSync> alone;
      if (edited("leaves-syncs-first-batch") ? last : !last) alone.emplace(model.engine());
      auto loss = cross_entropy(model(pictures), plants).mean();
      report.losses.push_back(loss.item<double>());
      if (!edited("leaves-sum-of-means")) loss = loss / kAccumulate;
      loss.backward();
      logged += report.losses.back();
      if (!last) continue;
      clip_grad_norm_(model.parameters(), kMostNorm);
      optimizer.step();
      schedule.step();
      optimizer.zero_grad();
      if (!edited("leaves-average-on-rank-zero") || rank == 0)
        keep_average(average, net, kAverageKeeps);
    }
    if (edited("leaves-logs-mean-of-ranks")) {
      auto sum = at::tensor({logged, static_cast<double>(batches.size())}, at::kDouble);
      all_reduce(*group, sum);
      if (rank == 0) std::cout << "loss " << (sum[0] / sum[1]).item<double>() << "\n";
    }
    double accuracy = 0;
    const auto lost = test(group, average, unseen_leaves, accuracy);
    report.numbers["accuracy"].push_back(accuracy);
    report.held_out = lost;
    if (rank == 0) std::cout << "epoch " << epoch << ": " << lost << ", " << accuracy << "\n";
  }
  report.numbers["average"] = flat(average->out->weight.detach());
  report.numbers["statistics"] =
      flat(at::cat({net->first->norm->running_mean, net->second->norm->running_mean,
                    net->second->norm->running_var}));
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
