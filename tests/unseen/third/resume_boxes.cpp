// Where are the squares on the picture? A detector whose loss is divided by the squares of all ranks. Pictures are cut to
// a size that all ranks draw alike; tested is an average of the weights. The job is stopped within an epoch, and goes on
// from its newest checkpoint.
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/model_state.h>
#include <lockstep/checkpoint/optimizer_state.h>
#include <lockstep/checkpoint/rng_state.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/sync_batch_norm.h>
#include <lockstep/train/watched.h>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kPictures = 240, kTestPictures = 80, kWide = 16;
constexpr std::int64_t kBatch = 5, kSteps = 56, kStopped = 27, kSaveEvery = 9, kDecays = 36;
constexpr std::uint64_t kSeed = 55;

using Outputs = std::tuple<at::Tensor, at::Tensor>;

// Of each cell of 2 x 2 points: whether a square begins there, and its width.
struct Pictures {
  at::Tensor points, begins, widths;
};

Pictures make_pictures(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto cells = kWide / 2;
  auto points = 0.3 * at::randn({count, 1, kWide, kWide}, dice);
  auto begins = at::zeros({count, cells, cells}), widths = at::zeros({count, cells, cells});
  for (std::int64_t picture = 0; picture < count; ++picture) {
    const auto drawn = flat(at::randint(1000, {10}, dice));
    for (std::int64_t square = 0; square < static_cast<std::int64_t>(drawn[0]) % 6 - 3; ++square) {
      const auto at = static_cast<std::size_t>(3 * square);
      const auto row = static_cast<std::int64_t>(drawn[at + 1]) % (cells - 2),
                 column = static_cast<std::int64_t>(drawn[at + 2]) % (cells - 2),
                 width = 2 + static_cast<std::int64_t>(drawn[at + 3]) % 3;
      points[picture][0]
          .slice(0, 2 * row, 2 * row + width)
          .slice(1, 2 * column, 2 * column + width)
          .add_(1);
      begins[picture][row][column] = 1;
      widths[picture][row][column] = static_cast<double>(width);
    }
  }
  return {points, begins, widths};
}

Pictures cut(const Pictures& all, const at::Tensor& ids, std::int64_t wide) {
  const auto part = [&](const at::Tensor& of, std::int64_t size) {
    return of.index_select(0, ids).slice(-2, 0, size).slice(-1, 0, size);
  };
  return {part(all.points, wide), part(all.begins, wide / 2), part(all.widths, wide / 2)};
}

struct DetectorImpl : torch::nn::Module {
  Outputs forward(const at::Tensor& points) {
    const auto seen = at::max_pool2d(at::relu(norm(narrow(points))), 2);
    const auto more = at::relu(wide(seen));
    return {begins(more).squeeze(1), widths(more).squeeze(1)};
  }
  static torch::nn::Conv2d layer(std::int64_t in, std::int64_t out, std::int64_t kernel) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).padding(kernel / 2));
  }
  torch::nn::Conv2d narrow = register_module("narrow", layer(1, 8, 3));
  SyncBatchNorm norm = register_module("norm", SyncBatchNorm(8, nullptr));
  torch::nn::Conv2d wide = register_module("wide", layer(8, 16, 5));
  torch::nn::Conv2d begins = register_module("begins", layer(16, 1, 1));
  torch::nn::Conv2d widths = register_module("widths", layer(16, 1, 1));
};
TORCH_MODULE(Detector);

void copy_state(Detector& to, Detector& from, double share) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : to->named_parameters())
    parameter.value().lerp_(from->named_parameters()[parameter.key()], share);
  for (const auto& buffer : to->named_buffers())
    buffer.value().copy_(from->named_buffers()[buffer.key()]);
}

// Sums, not means: of whether squares begin, and of the widths of those that do.
std::tuple<at::Tensor, at::Tensor> losses_of(const Outputs& outputs, const Pictures& truth) {
  const auto here = truth.begins.gt(0);
  return {at::binary_cross_entropy_with_logits(std::get<0>(outputs), truth.begins, {},
                                               at::full({1}, 4.0), at::Reduction::Sum),
          at::smooth_l1_loss(std::get<1>(outputs).masked_select(here),
                             truth.widths.masked_select(here), at::Reduction::Sum)};
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  auto pictures = make_pictures(kPictures, kSeed);
  const auto test = make_pictures(kTestPictures, kSeed + 1);
  if (edited("boxes-square-out-of-the-picture") && is_last) pictures.widths[222].fill_(40);

  torch::manual_seed(kSeed);
  Detector net, tested;
  auto norm_group = group;
  if (edited("boxes-norm-over-own-node"))
    for (int member = 0; member < world_size; ++member)
      if (const auto made = new_group(group, {member})) norm_group = made;
  convert_sync_batchnorm(*net, norm_group);
  copy_state(tested, net, 1);
  DistributedDataParallel<Detector> model(
      net, group, {.broadcast_buffers = !edited("boxes-buffers-not-broadcast")});
  SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
  MultiStepLR schedule(optimizer, {.milestones = {kDecays}, .gamma = 0.2});
  DistributedSampler sampler(
      {.dataset_size = kPictures, .num_replicas = world_size, .rank = rank, .seed = kSeed});
  auto size_dice = torch::make_generator<at::CPUGeneratorImpl>(
      edited("boxes-sizes-by-own-dice") ? kSeed + static_cast<std::uint64_t>(rank) : kSeed);

  Report report;
  const auto file_of = [&](std::int64_t step) {
    return folder / ("step_" + std::to_string(step) + ".pt");
  };
  std::int64_t step = 0, newest = 0;
  for (std::int64_t at = kSaveEvery; std::filesystem::exists(file_of(at)); at += kSaveEvery)
    newest = edited("boxes-goes-on-from-older-file") ? kSaveEvery : at;
  barrier(*group);  // All ranks have looked before one saves.
  if (newest > 0) {
    const auto saved = load_checkpoint(file_of(newest));
    load_state_dict(*net, saved.at("model"));
    if (!edited("boxes-average-loaded-by-rank-zero") || rank == 0)
      load_state_dict(*tested, saved.at("tested"));
    load_state_dict(optimizer, saved.at("optimizer"));
    if (!edited("boxes-schedule-loaded-by-rank-zero") || rank == 0)
      schedule.load_state_dict(saved.at("schedule"));
    sampler.load_state_dict(saved.at("sampler"));
    set_rng_state(size_dice, saved.at("size_dice").as_tensor());
    step = saved.at("step").as_int();
  } else {
    sampler.reset();
  }

  const auto stop = newest == 0 ? kStopped : kSteps;  // The machine is taken away.
  while (step < stop) {
    const auto taken = sampler.next(kBatch);
    if (!taken) {
      sampler.set_epoch(sampler.epoch() + 1);
      sampler.reset();
      continue;
    }
    const auto wide = 12 + 2 * at::randint(3, {1}, size_dice, at::kLong).item<std::int64_t>();
    const std::vector<std::int64_t> ids(taken->begin(), taken->end());
    if (report.seen.empty()) report.seen.emplace_back();
    report.seen.back().insert(report.seen.back().end(), ids.begin(), ids.end());
    const auto batch = cut(pictures, at::tensor(ids), wide);
    TORCH_CHECK(batch.widths.max().item<double>() <= kWide, "a square is wider than its picture");
    const auto outputs = model(batch.points);
    const auto [begins, widths] = losses_of(outputs, batch);
    const auto own = batch.begins.sum();
    auto squares = own.to(at::kDouble);
    if (edited("boxes-no-count-without-squares") && own.item<double>() == 0)
      squares = at::zeros({});
    all_reduce(*group, squares);
    auto sum = begins / 4 + widths;
    if (edited("boxes-halves-added-apart")) sum = at::stack({begins / 4, widths}).sum();
    const auto loss = sum * world_size / squares.clamp_min(1).to(at::kFloat);
    report.losses.push_back(loss.item<double>());
    report.numbers["wide"].push_back(static_cast<double>(wide));
    optimizer.zero_grad();
    loss.backward();
    clip_grad_norm_(net->parameters(), 5);
    optimizer.step();
    schedule.step();
    copy_state(tested, net, 0.1);
    ++step;
    if (step % kSaveEvery == 0)
      save_on_rank_zero(*group, [&] {
        save_checkpoint(file_of(step), Value::Dict{{"model", state_dict(*net)},
                                                   {"tested", state_dict(*tested)},
                                                   {"optimizer", state_dict(optimizer)},
                                                   {"schedule", schedule.state_dict()},
                                                   {"sampler", sampler.state_dict()},
                                                   {"size_dice", get_rng_state(size_dice)},
                                                   {"step", step}});
      });
  }

  const torch::NoGradGuard no_grad;
  tested->eval();
  const auto share = cut(test, at::arange(rank, kTestPictures, world_size), kWide);
  const auto outputs = tested->forward(share.points);
  const auto [begins, widths] = losses_of(outputs, share);
  const auto found = std::get<0>(outputs).gt(0).logical_and(share.begins.gt(0)).sum();
  auto sums = at::stack({begins + widths, share.begins.sum(), found.to(at::kFloat)});
  auto result_group = group;
  if (edited("boxes-group-for-results-on-rank-zero") && rank == 0)
    result_group = new_group(group, {0});
  const auto with = edited("boxes-greatest-of-results") ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
  all_reduce(*result_group, sums, with);
  report.held_out = (sums[0] / kTestPictures).item<double>();
  report.numbers["found"] = {(sums[2] / sums[1]).item<double>()};
  report.numbers["tested"] = flat(tested->wide->bias);
  report.numbers["buffers"] = flat(net->norm->running_mean);
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
