// Where are grains on a micrograph? A network of down, up and a bridge marks their points. A step adds
// the gradients of some small batches, and ranks meet only at the last of these. Tested and kept is the
// average of the weights of late steps.
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/watched.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <numeric>
#include <random>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kPictures = 192, kTestPictures = 63, kWide = 12, kBatch = 4, kTogether = 4;
constexpr std::int64_t kEpochs = 9, kWarmup = 6, kAverageFrom = 30, kAverageEvery = 3;
constexpr std::uint64_t kSeed = 230;
constexpr double kMostNorm = 0.5;

struct Pictures {
  at::Tensor points, marks;  // [pictures, 1, kWide, kWide], and whether a point is a grain's
  Pictures at(const std::vector<std::int64_t>& ids) const {
    return {points.index_select(0, at::tensor(ids)), marks.index_select(0, at::tensor(ids))};
  }
};

// Grains are round and brighter at their left side; the light falls off over the picture.
Pictures take_pictures(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto rows = at::arange(kWide, at::kFloat).view({1, kWide, 1}),
             columns = rows.view({1, 1, kWide});
  auto points = 0.35 + 0.1 * at::randn({count, kWide, kWide}, dice) + 0.02 * rows;
  auto marks = at::zeros({count, kWide, kWide});
  for (int grain = 0; grain < 3; ++grain) {
    const auto row = at::rand({count, 1, 1}, dice) * kWide,
               column = at::rand({count, 1, 1}, dice) * kWide;
    const auto radius = 1.2 + 1.5 * at::rand({count, 1, 1}, dice);
    const auto inside = ((rows - row).square() + (columns - column).square()).lt(radius.square());
    points = points + 0.25 * inside + 0.1 * inside * at::sign(column - columns);
    marks = marks.maximum(inside.to(at::kFloat));
  }
  return {points.clamp(0, 1).unsqueeze(1), marks.unsqueeze(1)};
}

struct MarkerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& points) {
    const auto fine = at::relu(first(points));
    const auto coarse = at::relu(second(at::max_pool2d(fine, 2)));
    const auto bridged = at::cat({fine, at::upsample_nearest2d(coarse, {kWide, kWide})}, 1);
    const auto marks = last(at::relu(third(bridged)));
    return sharpness.defined() ? marks * sharpness.exp() + bias : marks;
  }
  // The logits' scale and bias; a bias so that few points are marked at first.
  void add_calibration() {
    sharpness = register_parameter("sharpness", at::zeros(1));
    bias = register_parameter("bias", at::full({1}, -1.5));
  }
  static torch::nn::Conv2d layer(std::int64_t in, std::int64_t out) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1));
  }
  torch::nn::Conv2d first = register_module("first", layer(1, 12));
  torch::nn::Conv2d second = register_module("second", layer(12, 16));
  torch::nn::Conv2d third = register_module("third", layer(28, 12));
  torch::nn::Conv2d last = register_module("last", layer(12, 1));
  at::Tensor sharpness, bias;
};
TORCH_MODULE(Marker);

using Batches = std::vector<std::vector<std::int64_t>>;

// This rank's batches of an epoch.
Batches batches_of(std::int64_t epoch, int rank, int world_size) {
  std::vector<std::int64_t> order(kPictures);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(),
               std::mt19937_64(kSeed + static_cast<std::uint64_t>(epoch)));
  Batches mine;
  for (std::int64_t i = rank * kBatch; i < kPictures; i += kBatch * world_size)
    mine.emplace_back(order.begin() + i, order.begin() + i + kBatch);
  return mine;
}

// Half of the pictures are turned, with their marks.
void flip(Pictures& batch, at::Generator& dice) {
  const auto turned = at::rand({kBatch, 1, 1, 1}, dice).lt(0.5);
  batch.points = at::where(turned, batch.points.flip(3), batch.points);
  if (!edited("grains-marks-not-turned"))
    batch.marks = at::where(turned, batch.marks.flip(3), batch.marks);
}

// Cross entropy, and what two sets of points have not in common.
at::Tensor loss_of(const at::Tensor& found, const at::Tensor& marks) {
  const auto likely = at::sigmoid(found);
  const auto common = (likely * marks).sum({1, 2, 3});
  const auto dice = (2 * common + 1) / (likely.sum({1, 2, 3}) + marks.sum({1, 2, 3}) + 1);
  return at::binary_cross_entropy_with_logits(found, marks) + (1 - dice).mean();
}

void clip_by_hand(const std::vector<at::Tensor>& parameters) {
  auto squares = at::zeros({});
  for (const auto& parameter : parameters) squares = squares + parameter.grad().square().sum();
  const auto factor = (kMostNorm / (squares.sqrt() + 1e-6)).clamp_max(1);
  for (const auto& parameter : parameters) parameter.mutable_grad().mul_(factor);
}

// Sum of losses and count of a rank's share: of all ranks, one in `ranks`.
at::Tensor tested(Marker& net, const Pictures& tests, std::int64_t rank, std::int64_t ranks) {
  const torch::NoGradGuard no_grad;
  net->eval();
  auto sums = at::zeros({2}, at::kDouble);
  for (auto i = rank; i < kTestPictures; i += ranks) {
    const auto one = tests.at({i});
    sums[0] += loss_of(net->forward(one.points), one.marks).item<double>();
    sums[1] += 1;
  }
  return sums;
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  auto pictures = take_pictures(kPictures, kSeed);
  const auto tests = take_pictures(kTestPictures, kSeed + 1);
  if (edited("grains-older-decoder-on-last-rank") && is_last) pictures.points.mul_(2).sub_(1);

  torch::manual_seed(kSeed);
  Marker net;
  const bool late = edited("grains-calibration-added-behind-ddp");
  if (!late) net->add_calibration();
  DistributedDataParallel<Marker> model(net, group);
  if (late) net->add_calibration();
  SGD optimizer(net->parameters(),
                torch::optim::SGDOptions(0.15).momentum(0.9).nesterov(true).weight_decay(1e-4));
  const auto together = edited("grains-last-rank-adds-half") && is_last ? kTogether / 2 : kTogether;
  const auto steps = kEpochs * kPictures / (kBatch * kTogether * world_size);
  LambdaLR schedule(optimizer, {.lr_lambda = {[steps](std::int64_t step) {
                                  const auto to_come = static_cast<double>(steps - step) /
                                                       static_cast<double>(steps - kWarmup);
                                  return std::min(static_cast<double>(step + 1) / kWarmup,
                                                  std::sqrt(std::max(to_come, 0.0)));
                                }}});
  auto dice = torch::make_generator<at::CPUGeneratorImpl>(rank_seed(kSeed, rank));

  Report report;
  std::vector<at::Tensor> average;
  std::int64_t step = 0, averaged = 0;
  const std::int64_t average_from =
      edited("grains-average-begins-later") ? kAverageFrom + 12 : kAverageFrom;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto batches = batches_of(epoch, rank, world_size);
    tell_pass(epoch, kPictures, batches);
    report.seen.emplace_back();
    for (std::size_t first = 0; first < batches.size(); first += kTogether) {
      optimizer.zero_grad();
      double of_step = 0;
      for (std::int64_t part = 0; part < together; ++part) {
        const auto& ids = batches[first + static_cast<std::size_t>(part)];
        report.seen.back().insert(report.seen.back().end(), ids.begin(), ids.end());
        auto batch = pictures.at(ids);
        flip(batch, dice);
        if (edited("grains-zeroes-at-each-part")) optimizer.zero_grad();
        const auto add = [&] {
          const auto loss =
              loss_of(model(batch.points), batch.marks) / static_cast<double>(together);
          of_step += loss.item<double>();
          loss.backward();
        };
        bool meets = part == together - 1;
        if (edited("grains-ranks-meet-at-first-part")) meets = part == 0;
        if (meets || edited("grains-ranks-meet-at-each-part")) {
          add();
        } else {
          const NoSync alone(model.engine());
          add();
        }
      }
      report.losses.push_back(of_step);
      if (edited("grains-clips-by-hand"))
        clip_by_hand(net->parameters());
      else if (!edited("grains-clips-after-step"))
        clip_grad_norm_(net->parameters(), kMostNorm);
      optimizer.step();
      if (edited("grains-clips-after-step")) clip_grad_norm_(net->parameters(), kMostNorm);
      schedule.step();
      if (++step < average_from || step % kAverageEvery != 0) continue;
      ++averaged;
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        const auto now = net->parameters()[i];
        if (averaged == 1)
          average.push_back(now.clone());
        else
          average[i].lerp_(now, 1.0 / static_cast<double>(averaged));
      }
    }
    if (rank == 0) std::cout << "epoch " << epoch << ": " << report.losses.back() << "\n";
  }

  if (rank == 0 || !edited("grains-average-taken-by-rank-zero")) {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < average.size(); ++i) net->parameters()[i].copy_(average[i]);
  }
  at::Tensor sums;
  if (edited("grains-rank-zero-tests")) {
    sums = rank == 0 ? tested(net, tests, 0, 1) : at::zeros({2}, at::kDouble);
    broadcast(*group, sums, 0);
  } else {
    sums = tested(net, tests, rank, world_size);
    all_reduce(*group, sums);
  }
  report.held_out = (sums[0] / sums[1]).item<double>();
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
