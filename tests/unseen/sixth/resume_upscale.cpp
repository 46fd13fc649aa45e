// Upscales images to twice their size, with pixel shuffle, in mixed precision. A camera's broken frames are not finite;
// the scaler leaves their steps out. A start takes half of the steps at most, and the next one goes on in the middle of
// the epoch.
#include <lockstep/checkpoint/broadcast_value.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/grad_scaler.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>

#include <iostream>
#include <limits>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kImages = 384, kTestImages = 64, kSide = 16, kWidth = 20, kBrokenImage = 133;

struct Settings {
  std::size_t batch = 12;
  std::int64_t epochs = 3, steps_of_a_start = 24;
  double learning_rate = 8e-3, max_norm = 0.05, decay_of_average = 0.9, first_scale = 1024;
  std::uint64_t seed = 7001;
};

// [n, 1, kSide, kSide]: edges and waves.
at::Tensor make_images(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto draw = [&](double scale) { return scale * at::randn({count, 1, 1, 1}, dice); };
  const auto x = at::linspace(-1, 1, kSide).view({1, 1, 1, kSide}), y = x.transpose(2, 3);
  const auto waves = at::sin(draw(3) * x + draw(3) * y + draw(2));
  return waves + at::tanh(12 * (draw(1) * x + draw(1) * y + draw(0.3)));
}

struct UpscalerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& small) {
    const auto seen = at::relu(deep(at::relu(in(small))));
    return at::pixel_shuffle(out(seen), 2) + at::upsample_bilinear2d(small, {kSide, kSide}, false);
  }
  static torch::nn::Conv2d conv(std::int64_t from, std::int64_t to) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1));
  }
  torch::nn::Conv2d in = register_module("in", conv(1, kWidth));
  torch::nn::Conv2d deep = register_module("deep", conv(kWidth, kWidth));
  torch::nn::Conv2d out = register_module("out", conv(kWidth, 4));
};
TORCH_MODULE(Upscaler);

struct BothImpl : torch::nn::Module {
  BothImpl(const Upscaler& one, const Upscaler& mean)
      : net(register_module("net", one)), average(register_module("average", mean)) {}
  Upscaler net, average;
};
TORCH_MODULE(Both);

at::Tensor charbonnier(const at::Tensor& said, const at::Tensor& image) {
  return ((said.to(at::kFloat) - image).square() + 1e-4).sqrt();
}

struct Pair {
  at::Tensor small, large;
};

// Images turned over as their own dice say, and made small.
Pair load_batch(const at::Tensor& images, const std::vector<std::size_t>& ids, std::uint64_t seed,
                std::int64_t epoch, bool is_older) {
  std::vector<at::Tensor> small, large;
  for (const auto id : ids) {
    const auto index = static_cast<std::int64_t>(id);
    const auto turn = edited("upscale-same-flips-each-epoch") ? 0 : epoch;
    const auto dice = torch::make_generator<at::CPUGeneratorImpl>(sample_seed(seed, turn, index));
    std::vector<std::int64_t> sides;
    for (const std::int64_t side : {1, 2})
      if (at::rand({1}, dice).item<double>() < 0.5) sides.push_back(side);
    const auto image = images[index], turned = image.flip(sides);
    small.push_back(at::avg_pool2d(turned.unsqueeze(0), 2).squeeze(0));
    large.push_back(is_older ? image : turned);
  }
  return {at::stack(small), at::stack(large)};
}

double evaluate(const ProcessGroupPtr& group, Upscaler& net, const at::Tensor& test) {
  const torch::NoGradGuard no_grad;
  const auto own = test.slice(0, group->getRank(), c10::nullopt, group->getSize());
  Mean loss;
  loss.add(charbonnier(net->forward(at::avg_pool2d(own, 2)), own));
  return reduce_metric(*group, loss).value();
}

void update_average(Upscaler& average, Upscaler& net, double decay) {
  const torch::NoGradGuard no_grad;
  const auto from = net->parameters(), to = average->parameters();
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (edited("upscale-average-by-lerp"))
      to[i].lerp_(from[i], 1 - decay);
    else
      to[i].mul_(decay).add_(from[i], 1 - decay);
  }
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  Settings settings;
  if (edited("upscale-larger-scale")) settings.first_scale = 16384;
  auto images = make_images(kImages, 7000);
  images[kBrokenImage][0][3].fill_(std::numeric_limits<float>::infinity());
  const auto test = make_images(kTestImages, 6999);

  torch::manual_seed(settings.seed);
  Upscaler net, average;
  load_state_dict(*average, state_dict(*net));
  Adam optimizer(net->parameters(), AdamOptions(settings.learning_rate));
  MultiStepLR schedule(optimizer, {.milestones = {18, 40}, .gamma = 0.3});
  GradScaler scaler({.init_scale = settings.first_scale, .growth_interval = 8}, group);
  DistributedSampler sampler(
      {.dataset_size = kImages, .num_replicas = world_size, .rank = rank, .seed = settings.seed});

  // Where training goes on: the steps done, by the file that rank 0 sees.
  const auto file = folder / "upscale.pt", older_average = folder / "average_of_epoch.pt";
  auto found = at::full({1}, rank == 0 && std::filesystem::exists(file) ? 1 : 0, at::kLong);
  broadcast(*group, found);
  const bool goes_on = found.item<std::int64_t>() != 0;
  std::int64_t steps = 0, first_epoch = 0;
  if (goes_on) {
    const bool reads = rank == 0 || !edited("upscale-rank-zero-reads");
    Value state = reads ? load_checkpoint(file).value : Value();
    if (edited("upscale-rank-zero-reads")) state = broadcast_value(*group, state);
    steps = state.at("steps").as_int();
    first_epoch = state.at("sampler").at("epoch").as_int();
    load_state_dict(*net, state.at("model"));
    const bool is_stale = edited("upscale-stale-average-on-last-rank") && is_last;
    load_state_dict(*average,
                    is_stale ? load_checkpoint(older_average).value : state.at("average"));
    if (!edited("upscale-no-moments-on-last-rank") || !is_last)
      load_state_dict(optimizer, state.at("optimizer"));
    schedule.load_state_dict(state.at("schedule"));
    scaler.load_state_dict(state.at("scaler"));
    if (edited("upscale-sampler-begins-anew"))
      sampler.set_epoch(first_epoch), sampler.reset();
    else
      sampler.load_state_dict(state.at("sampler"));
    if (edited("upscale-settings-overrule-schedule"))
      for (auto& one : optimizer.param_groups()) one.options().set_lr(settings.learning_rate);
  }
  DistributedDataParallel<Upscaler> model(net, group);

  Report report;
  const auto save = [&] {
    save_on_rank_zero(*group, [&] {
      save_checkpoint(file, Value::Dict{{"steps", steps},
                                        {"model", state_dict(*net)},
                                        {"average", state_dict(*average)},
                                        {"optimizer", state_dict(optimizer)},
                                        {"schedule", schedule.state_dict()},
                                        {"scaler", scaler.state_dict()},
                                        {"sampler", sampler.state_dict()}});
    });
  };
  const auto train_step = [&](const std::vector<std::size_t>& ids, std::int64_t epoch) {
    const bool is_older = edited("upscale-older-loader-on-last-rank") && is_last;
    const auto batch = load_batch(images, ids, settings.seed, epoch, is_older);
    ++steps;
    optimizer.zero_grad();
    at::Tensor said;
    {
      const Autocast autocast(at::kCPU, at::kBFloat16);
      said = model(batch.small);
    }
    const auto loss = charbonnier(said, batch.large).mean();
    const auto number = loss.item<double>();
    report.losses.push_back(std::isfinite(number) ? number : 0.0);
    if (edited("upscale-skips-broken-batches") && !std::isfinite(number)) {
      std::cout << "step " << steps << ": skipped\n";
      return;
    }
    scaler.scale(loss).backward();
    if (!edited("upscale-clips-scaled-gradients")) scaler.unscale_(optimizer);
    clip_grad_norm_(net->parameters(), settings.max_norm);
    scaler.step(optimizer);
    scaler.update();
    schedule.step();
    update_average(average, net, settings.decay_of_average);
  };

  for (auto epoch = first_epoch; epoch < settings.epochs; ++epoch) {
    if (!goes_on || epoch > first_epoch) {
      sampler.set_epoch(epoch);
      sampler.reset();
    }
    report.seen.emplace_back();
    while (const auto ids = sampler.next(settings.batch)) {
      report.seen.back().insert(report.seen.back().end(), ids->begin(), ids->end());
      train_step(*ids, epoch);
      if (edited("upscale-saves-more-often") && steps % 6 == 0) save();
      if (!goes_on && steps == settings.steps_of_a_start) break;
    }
    report.held_out = evaluate(group, average, test);
    if (rank == 0)
      std::cout << "epoch " << epoch << ": held out " << report.held_out << ", scale "
                << scaler.get_scale() << "\n";
    if (!goes_on && steps == settings.steps_of_a_start) break;
    save_on_rank_zero(*group, [&] { save_checkpoint(older_average, state_dict(*average)); });
  }
  save();
  write(folder, rank, report, *Both(net, average));
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
