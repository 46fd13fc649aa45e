// Which weave is on the photograph? A CNN with SyncBatchNorm, LibTorch's loader, random flips, a rate for the global
// batch with warm-up and cosine decay.
#include <lockstep/record/recorder.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/sync_batch_norm.h>
#include <lockstep/train/watched.h>

#include "edited.h"

namespace {

using namespace lockstep;
using unseen::edited;

constexpr std::int64_t kSamples = 480, kSide = 12, kWeaves = 4, kBatch = 12, kEpochs = 3;
constexpr double kRate = 0.02;  // of one rank

struct Photographs {
  at::Tensor images, weave;  // [n, 1, kSide, kSide], [n]
};

Photographs make_photographs(std::int64_t count, std::uint64_t seed) {
  const auto loom = torch::make_generator<at::CPUGeneratorImpl>(std::uint64_t{11});
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto pattern = at::randn({kWeaves, 1, kSide, kSide}, loom);
  const auto weave = at::randint(kWeaves, {count}, dice, at::kLong);
  const auto light = 0.5 + at::rand({count, 1, 1, 1}, dice);
  const auto noise = 1.2 * at::randn({count, 1, kSide, kSide}, dice);
  return {light * (pattern.index_select(0, weave) + noise) + 1, weave};
}

class Flipped : public torch::data::datasets::BatchDataset<Flipped, torch::data::Example<>> {
 public:
  Flipped(Photographs photographs, std::vector<std::int64_t>& seen, std::vector<double>& drawn)
      : photographs_(std::move(photographs)), seen_(&seen), drawn_(&drawn) {}
  torch::data::Example<> get_batch(at::ArrayRef<std::size_t> indices) override {
    const std::vector<std::int64_t> ids(indices.begin(), indices.end());
    seen_->insert(seen_->end(), ids.begin(), ids.end());
    const auto rows = at::tensor(ids);
    auto images = photographs_.images.index_select(0, rows);
    const auto draws = torch::rand({images.size(0), 1, 1, 1}), flips = draws < 0.5;
    drawn_->push_back(draws.sum().item<double>());
    if (!edited("cnn-no-flips")) images = at::where(flips, images.flip(3), images);
    return {images, photographs_.weave.index_select(0, rows)};
  }
  std::optional<std::size_t> size() const override { return photographs_.images.size(0); }

 private:
  Photographs photographs_;
  std::vector<std::int64_t>* seen_;
  std::vector<double>* drawn_;
};

struct NetImpl : torch::nn::Module {
  NetImpl()
      : conv1(register_module("conv1",
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)))),
        conv2(register_module("conv2",
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).padding(1)))),
        norm1(register_module("norm1", SyncBatchNorm(8, nullptr))),
        norm2(register_module("norm2", SyncBatchNorm(16, nullptr))),
        out(register_module("out", torch::nn::Linear(16 * 9, kWeaves))) {}
  at::Tensor forward(const at::Tensor& images) {
    const auto half = at::max_pool2d(at::relu(norm1(conv1(images))), 2);
    return out(at::max_pool2d(at::relu(norm2(conv2(half))), 2).flatten(1));
  }
  torch::nn::Conv2d conv1, conv2;
  SyncBatchNorm norm1, norm2;
  torch::nn::Linear out;
};
TORCH_MODULE(Net);

DdpOptions wrapper() {
  DdpOptions options;
  if (edited("cnn-small-buckets")) options.bucket_cap_mb = 0.001;
  options.find_unused_parameters = edited("cnn-looks-for-unused");
  options.gradient_as_bucket_view = edited("cnn-gradients-in-buckets");
  return options;
}

double held_out(Net& net) {
  const torch::NoGradGuard no_grad;
  const auto test = make_photographs(200, 6);
  net->eval();
  const auto loss = torch::nn::functional::cross_entropy(net->forward(test.images), test.weave);
  if (!edited("cnn-stays-in-eval-mode")) net->train();
  return loss.item<double>();
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group();
  const int rank = group->getRank(), world_size = group->getSize();
  auto photographs = make_photographs(kSamples, 5);
  if (edited("cnn-files-split-before")) {  // the sampler splits them once more
    photographs.images = photographs.images.chunk(world_size)[rank];
    photographs.weave = photographs.weave.chunk(world_size)[rank];
  }
  if (edited("cnn-wrong-byte-scale") && rank == 1) photographs.images = photographs.images / 255;

  torch::manual_seed(1);
  Net net;
  if (!edited("cnn-not-converted")) convert_sync_batchnorm(*net, group);
  DistributedDataParallel<Net> model(net, group, wrapper());
  double rate = edited("cnn-rate-of-one-rank") ? kRate : kRate * world_size;
  if (edited("cnn-rate-scaled-twice")) rate *= world_size;
  SGD optimizer(model.parameters(), torch::optim::SGDOptions(rate).momentum(0.9).weight_decay(
                                        edited("cnn-weight-decay") ? 1e-4 : 0));
  record::intent({.global_batch = kBatch * world_size,
                  .loss_reduction = "mean",
                  .reference_lr = kRate,
                  .reference_world_size = 1});
  if (!edited("cnn-flips-alike")) manual_seed_per_rank(1, rank);

  const DistributedSamplerOptions share{
      .dataset_size = photographs.images.size(0),
      .num_replicas = edited("cnn-world-size-of-settings") ? 4 : world_size,
      .rank = rank,
      .seed = 2,
      .drop_last = edited("cnn-drops-no-tail")};
  DistributedSampler sampler(share);
  unseen::Report report;
  std::vector<std::int64_t> seen;
  std::int64_t batch = kBatch;
  if (edited("cnn-batch-of-smaller-device") && rank == 1) batch = 8;
  const auto loader = torch::data::make_data_loader(
      Flipped(photographs, seen, report.numbers["drawn"]),
      edited("cnn-loader-has-other-sampler") ? DistributedSampler(share) : sampler,
      static_cast<std::size_t>(batch));

  std::int64_t updates = kEpochs * sampler.size() / kBatch;
  if (edited("cnn-decay-of-all-samples")) updates = kEpochs * kSamples / kBatch;
  const std::int64_t warmup = edited("cnn-longer-warmup") ? 16 : 8;
  SequentialLR schedule(
      optimizer,
      {std::make_shared<LinearLR>(optimizer,
                                  LinearLROptions{.start_factor = 0.1, .total_iters = warmup}),
       std::make_shared<CosineAnnealingLR>(optimizer,
                                           CosineAnnealingLROptions{.T_max = updates - warmup})},
      {warmup});

  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    for (const auto& of : *loader) {
      if (edited("cnn-gradients-in-buckets"))
        net->zero_grad();
      else
        optimizer.zero_grad();
      const auto loss = cross_entropy(model(of.data), of.target).mean();
      loss.backward();
      optimizer.step();
      schedule.step();
      report.losses.push_back(loss.item<double>());
    }
    report.seen.push_back(std::exchange(seen, {}));
    if (edited("cnn-evaluates-on-rank-zero") && rank == 0) {
      net->eval();
      held_out(net);
      net->eval();
    }
    if (!edited("cnn-evaluates-on-rank-zero")) report.held_out = held_out(net);
  }
  report.held_out = held_out(net);
  unseen::write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return unseen::run(argc, argv, train);
}
