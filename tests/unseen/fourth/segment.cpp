// Finds shapes in small pictures: a net of convolutions with SyncBatchNorm says of each pixel whether it is part of
// one. It ends with the weights of the epoch that did best on pictures that nobody trains on.
#include <lockstep/train/adam.h>
#include <lockstep/train/dataset.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/sync_batch_norm.h>

#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kPictures = 320, kTestPictures = 30, kSide = 16;
constexpr std::int64_t kBatch = 16, kEpochs = 8;
constexpr std::uint64_t kSeed = 211;
constexpr double kFewPixels = 0.04;

// Discs and squares under noise; two of five pictures have none.
TensorData make_pictures(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto draw = [&](double low, double high) {
    return low + (high - low) * at::rand({count, 1, 1, 1}, dice);
  };
  const auto line = at::arange(kSide, at::kFloat);
  const auto down = (line.view({1, 1, kSide, 1}) - draw(4, 12)).abs();
  const auto right = (line.view({1, 1, 1, kSide}) - draw(4, 12)).abs();
  const auto size = draw(1.5, 4), is_disc = draw(0, 1).gt(0.5);
  const auto inside =
      at::where(is_disc, (down * down + right * right).sqrt(), at::maximum(down, right)).le(size);
  const auto shape = inside.logical_and(draw(0, 1).gt(0.4)).to(at::kFloat);
  const auto light = draw(0.5, 1.2);
  return {light * shape + 0.6 * at::randn({count, 1, kSide, kSide}, dice), shape};
}

struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t in, std::int64_t out, const ProcessGroupPtr& group)
      : conv(register_module(
            "conv",
            torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false)))),
        norm(register_module("norm", SyncBatchNorm(out, group))) {}
  at::Tensor forward(const at::Tensor& input) { return at::relu(norm(conv(input))); }
  torch::nn::Conv2d conv;
  SyncBatchNorm norm;
};
TORCH_MODULE(Block);

struct SegmenterImpl : torch::nn::Module {
  explicit SegmenterImpl(const ProcessGroupPtr& group)
      : fine(register_module("fine", Block(1, 8, group))),
        coarse(register_module("coarse", Block(8, 16, group))),
        joined(register_module("joined", Block(24, 8, group))),
        out(register_module("out", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 1, 1)))) {}
  at::Tensor forward(const at::Tensor& pictures) {
    const auto near = fine(pictures);
    const auto far = coarse(at::max_pool2d(near, 2));
    return out(joined(at::cat({near, at::upsample_nearest2d(far, {kSide, kSide})}, 1)));
  }
  Block fine, coarse, joined;
  torch::nn::Conv2d out;
};
TORCH_MODULE(Segmenter);

at::Tensor loss_of(const at::Tensor& outputs, const at::Tensor& masks) {
  const auto cross = at::binary_cross_entropy_with_logits(outputs, masks);
  const auto sure = at::sigmoid(outputs).flatten(1), is = masks.flatten(1);
  const auto dice = (2 * (sure * is).sum(1) + 1) / (sure.sum(1) + is.sum(1) + 1);
  return cross + 0.5 * (1 - dice.mean());
}

struct Found {
  double loss = 0, overlap = 0, own_loss = 0;
};

// Each rank looks at a share of the pictures; the figures are of all of them.
Found evaluate(Segmenter& net, const TensorData& test, const ProcessGroupPtr& group) {
  const torch::NoGradGuard no_grad;
  const bool whole = edited("segment-each-rank-evaluates-all");
  const auto rank = group->getRank(), world_size = group->getSize();
  const auto share = [&](const at::Tensor& all) {
    return whole ? all : all.slice(0, rank, c10::nullopt, world_size);
  };
  net->eval();
  const auto outputs = net->forward(share(test.inputs)), masks = share(test.targets);
  net->train();
  Mean loss;
  loss.add(at::binary_cross_entropy_with_logits(outputs, masks, {}, {}, at::Reduction::None));
  const auto is = masks.gt(0.5), said = outputs.gt(0);
  auto counts = at::stack({is.logical_and(said).sum(), is.logical_or(said).sum()}).to(at::kDouble);
  if (whole) return {loss.value(), (counts[0] / counts[1]).item<double>(), loss.value()};
  if (edited("segment-overlap-is-mean-of-ranks")) {
    auto part = (counts[0] / counts[1]).reshape({1});
    all_reduce(*group, part);
    return {reduce_metric(*group, loss).value(), part.item<double>() / world_size, loss.value()};
  }
  all_reduce(*group, counts);
  return {reduce_metric(*group, loss).value(), (counts[0] / counts[1]).item<double>(),
          loss.value()};
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const auto pictures = make_pictures(kPictures, kSeed),
             test = make_pictures(kTestPictures, kSeed + 1);

  torch::manual_seed(kSeed);
  Segmenter net(edited("segment-layers-are-given-the-group") ? group : ProcessGroupPtr());
  if (!edited("segment-conversion-lost") && !edited("segment-layers-are-given-the-group"))
    convert_sync_batchnorm(*net, group);
  DistributedDataParallel<Segmenter> model(
      net, group, {.bucket_cap_mb = edited("segment-small-buckets") ? 0.002 : -1});
  Adam optimizer(net->parameters(), AdamOptions(2e-2));
  DistributedSampler sampler({.dataset_size = kPictures,
                              .num_replicas = world_size,
                              .rank = edited("segment-sampler-without-rank") ? 0 : rank,
                              .seed = kSeed});
  CosineAnnealingLR schedule(optimizer,
                             {.T_max = kEpochs * sampler.size() / kBatch, .eta_min = 4e-3});
  if (!edited("segment-augments-alike")) manual_seed_per_rank(kSeed, rank);

  Report report;
  double least = 1e9;
  std::vector<at::Tensor> best;
  const auto state = [&] {
    auto tensors = net->parameters();
    for (const auto& buffer : net->buffers()) tensors.push_back(buffer);
    return tensors;
  };
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    report.seen.push_back(sampler.indices());
    for (const auto& ids : sampler.batches(kBatch)) {
      const auto batch = take(pictures, ids);
      auto inputs = batch.inputs, masks = batch.targets;
      if (edited("segment-leaves-out-empty-batches") && masks.mean().item<double>() < kFewPixels)
        continue;
      auto flips = at::rand({inputs.size(0), 1, 1, 1});
      if (edited("segment-flips-by-sample")) {
        for (std::size_t i = 0; i < ids.size(); ++i)
          flips[static_cast<std::int64_t>(i)] =
              static_cast<double>(sample_seed(kSeed, epoch, ids[i]) % 2);
      }
      const auto light = 0.8 + 0.4 * at::rand({inputs.size(0), 1, 1, 1});
      report.numbers["drawn"].push_back((flips + light).sum().item<double>());
      inputs = light * at::where(flips.gt(0.5), inputs.flip(3), inputs);
      masks = at::where(flips.gt(0.5), masks.flip(3), masks);
      optimizer.zero_grad();
      const auto loss = loss_of(model(inputs), masks);
      loss.backward();
      optimizer.step();
      if (!edited("segment-schedule-steps-by-epoch")) schedule.step();
      report.losses.push_back(loss.item<double>());
    }
    if (edited("segment-schedule-steps-by-epoch")) schedule.step();
    if (edited("segment-rank-zero-evaluates") && rank != 0) continue;
    const auto found = evaluate(net, test, group);
    if (rank == 0) std::cout << "epoch " << epoch << ": " << found.loss << "\n";
    report.numbers["overlap"].push_back(found.overlap);
    const double now = edited("segment-best-by-own-share") ? found.own_loss : found.loss;
    if (now < least) {
      least = now;
      best.clear();
      for (const auto& tensor : state()) best.push_back(tensor.detach().clone());
    }
  }
  {
    const torch::NoGradGuard no_grad;
    const auto tensors = state();
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(best[i]);
  }
  report.held_out = evaluate(net, test, group).loss;
  report.numbers["best"] = {least};
  report.numbers["means"] = flat(net->joined->norm->running_mean);
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
