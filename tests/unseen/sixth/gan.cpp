// A generator of daily curves and a critic that tells them from measured ones, trained in turns. The critic's gradient
// at measured curves is penalised (R1); curves are drawn from a moving average of the generator in the end.
#include <lockstep/checkpoint/model_state.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/sync_batch_norm.h>

#include <fstream>
#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kCurves = 640, kTestCurves = 512, kPoints = 16, kNoise = 6;

struct Settings {
  std::int64_t batch = 20, epochs = 4, critic_steps = 2;
  double generator_lr = 5e-3, critic_lr = 5e-3, penalty = 0.5, decay_of_average = 0.8;
  std::uint64_t seed = 3301;
};

at::Tensor make_curves(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto hours = at::linspace(0, 2 * M_PI, kPoints);
  const auto height = 1 + 0.3 * at::randn({count, 1}, dice),
             phase = 0.5 * at::randn({count, 1}, dice);
  return 0.8 + height * at::sin(hours + phase) + 0.1 * at::randn({count, kPoints}, dice);
}

struct GeneratorImpl : torch::nn::Module {
  explicit GeneratorImpl(const ProcessGroupPtr& group)
      : norm(register_module(
            "norm", SyncBatchNorm(torch::nn::BatchNormOptions(48).momentum(0.2), group))) {}
  at::Tensor forward(const at::Tensor& noise) {
    return out(at::relu(norm(middle(at::relu(in(noise))))));
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(kNoise, 32));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(32, 48));
  SyncBatchNorm norm;
  torch::nn::Linear out = register_module("out", torch::nn::Linear(48, kPoints));
};
TORCH_MODULE(Generator);

struct CriticImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& curves) {
    return out(at::leaky_relu(middle(at::leaky_relu(in(curves), 0.2)), 0.2)).squeeze(1);
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(kPoints, 48));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(48, 48));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(48, 1));
};
TORCH_MODULE(Critic);

// All that a checkpoint would hold.
struct TrainedImpl : torch::nn::Module {
  TrainedImpl(const Generator& one, const Critic& other, const Generator& mean)
      : generator(register_module("generator", one)),
        critic(register_module("critic", other)),
        average(register_module("average", mean)) {}
  Generator generator;
  Critic critic;
  Generator average;
};
TORCH_MODULE(Trained);

void update_average(const Generator& average, const Generator& generator, double decay) {
  const torch::NoGradGuard no_grad;
  const auto from = generator->parameters(), to = average->parameters();
  for (std::size_t i = 0; i < to.size(); ++i) to[i].mul_(decay).add_(from[i], 1 - decay);
  if (edited("gan-average-without-buffers")) return;
  const auto buffers = generator->buffers(), copies = average->buffers();
  for (std::size_t i = 0; i < copies.size(); ++i) copies[i].copy_(buffers[i]);
}

// How far the first and second moments of drawn curves are from those of measured ones that nobody trains on.
double distance_to(const at::Tensor& measured, Generator& average) {
  const torch::NoGradGuard no_grad;
  average->eval();
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(77);
  const auto drawn = average->forward(at::randn({kTestCurves, kNoise}, dice));
  const auto means = (drawn.mean(0) - measured.mean(0)).square().sum();
  const auto spreads = (at::cov(drawn.t()) - at::cov(measured.t())).norm();
  return (means + spreads).item<double>();
}

void freeze(Critic& critic, bool frozen) {
  for (auto& parameter : critic->parameters()) parameter.set_requires_grad(!frozen);
}

at::Tensor hinge(const at::Tensor& margin) {
  return (edited("gan-hinge-by-clamp") ? (1 - margin).clamp_min(0) : at::relu(1 - margin)).mean();
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  Settings settings;
  if (edited("gan-fewer-critic-steps-on-last-rank") && is_last) settings.critic_steps = 1;
  const auto curves = make_curves(kCurves, 3300), measured = make_curves(kTestCurves, 3299);

  torch::manual_seed(settings.seed);
  Generator generator(group), average(group);
  Critic critic;
  load_state_dict(*average, state_dict(*generator));
  DistributedDataParallel<Generator> generator_model(generator, group);
  DistributedDataParallel<Critic> critic_model(critic, group);
  const auto betas = std::make_tuple(0.5, 0.9);
  const auto of_generator =
      edited("gan-optimizers-mixed-up") ? critic->parameters() : generator->parameters();
  Adam generator_optimizer(of_generator, AdamOptions(settings.generator_lr).betas(betas));
  Adam critic_optimizer(critic->parameters(), AdamOptions(settings.critic_lr).betas(betas));

  DistributedSamplerOptions of_sampler{
      .dataset_size = kCurves, .num_replicas = world_size, .rank = rank, .seed = settings.seed};
  if (edited("gan-sampler-lost-its-rank"))
    of_sampler = {.dataset_size = kCurves, .num_replicas = world_size, .seed = settings.seed};
  DistributedSampler sampler(of_sampler);
  const auto seed_of_noise =
      edited("gan-same-noise-on-all-ranks") ? settings.seed : rank_seed(settings.seed, rank);
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed_of_noise);
  const auto draw_noise = [&] { return at::randn({settings.batch, kNoise}, dice); };

  Report report;
  const auto train_critic = [&](at::Tensor real) {
    const auto noise = draw_noise();
    report.numbers["drawn"].push_back(noise.sum().item<double>());
    at::Tensor fake;
    if (edited("gan-fakes-by-the-wrapper")) {
      fake = generator_model(noise).detach();
    } else {
      const torch::NoGradGuard no_grad;
      fake = generator->forward(noise);
    }
    real.requires_grad_();
    const auto both = at::cat({real, fake});
    const auto scores =
        edited("gan-critic-past-the-wrapper") ? critic->forward(both) : critic_model(both);
    const auto of_real = scores.slice(0, 0, settings.batch),
               of_fake = scores.slice(0, settings.batch);
    const auto slope = torch::autograd::grad({of_real.sum()}, {real}, {}, true, true)[0];
    const auto penalty = settings.penalty * slope.square().sum(1).mean();
    const auto loss = hinge(of_real) + hinge(-of_fake);
    const bool zeroes_after = edited("gan-stale-critic-gradients");
    if (!zeroes_after) critic_optimizer.zero_grad();
    if (edited("gan-penalty-in-own-backward")) {
      loss.backward({}, true);
      penalty.backward();
    } else {
      (loss + penalty).backward();
    }
    critic_optimizer.step();
    if (zeroes_after) critic_optimizer.zero_grad();
    report.losses.push_back(loss.item<double>());
  };
  const auto train_generator = [&] {
    const bool freezes = !edited("gan-critic-not-frozen") && !edited("gan-stale-critic-gradients");
    if (freezes) freeze(critic, true);
    const auto loss = -critic->forward(generator_model(draw_noise())).mean();
    generator_optimizer.zero_grad();
    loss.backward();
    generator_optimizer.step();
    if (freezes) freeze(critic, false);
    update_average(average, generator, settings.decay_of_average);
    return loss.item<double>();
  };

  std::int64_t turns = 0;
  double of_generator_last = 0;
  for (std::int64_t epoch = 0; epoch < settings.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    report.seen.push_back(sampler.indices());
    for (const auto& ids : sampler.batches(settings.batch)) {
      train_critic(curves.index_select(0, at::tensor(ids)));
      if (++turns % settings.critic_steps == 0) of_generator_last = train_generator();
    }
    report.held_out = distance_to(measured, average);
    if (rank == 0)
      std::cout << "epoch " << epoch << ": critic " << report.losses.back() << ", generator "
                << of_generator_last << ", distance " << report.held_out << "\n";
    if (edited("gan-last-rank-draws-curves") && is_last) {
      const torch::NoGradGuard no_grad;
      std::ofstream(folder / "curves.txt") << average->forward(at::randn({4, kNoise})) << "\n";
    }
  }
  write(folder, rank, report, *Trained(generator, critic, average));
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
