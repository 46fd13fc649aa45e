// A GAN for made-up readings: two models, two optimizers, and the generator's batch norm over all ranks.
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/sync_batch_norm.h>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kReadings = 1600, kTestReadings = 800, kAxes = 8, kNoise = 6;
constexpr std::int64_t kBatch = 32, kEpochs = 2, kPreviewEvery = 10;
constexpr std::uint64_t kSeed = 21;
constexpr double kBalance = 0.68;  // The generator waits while the critic is worse than this.

at::Tensor make_readings(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto mixing = at::randn({2, kAxes}, torch::make_generator<at::CPUGeneratorImpl>(kSeed));
  const auto side = 2 * at::randint(2, {count, 1}, dice, at::kFloat) - 1;
  return side + 0.5 * at::randn({count, 2}, dice).matmul(mixing) +
         0.1 * at::randn({count, kAxes}, dice);
}

struct GeneratorImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& noise) { return out(at::relu(norm(in(noise)))); }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(kNoise, 48));
  SyncBatchNorm norm = register_module("norm", SyncBatchNorm(48, nullptr));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(48, kAxes));
};
TORCH_MODULE(Generator);

struct CriticImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& readings) {
    return out(at::leaky_relu(in(readings), 0.2)).squeeze(1);
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(kAxes, 48));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(48, 1));
};
TORCH_MODULE(Critic);

at::Tensor labelled(const at::Tensor& scores, double label) {
  return at::binary_cross_entropy_with_logits(scores, at::full_like(scores, label));
}

// How far mean and covariance of what it generates are from those of real readings.
double distance_to(Generator& generator, const at::Tensor& readings) {
  const torch::NoGradGuard no_grad;
  generator->eval();
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(kSeed + 2);
  const auto made = generator(at::randn({kTestReadings, kNoise}, dice));
  generator->train();
  return ((made.mean(0) - readings.mean(0)).pow(2).sum() +
          (at::cov(made.t()) - at::cov(readings.t())).pow(2).mean())
      .item<double>();
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  Report report;
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  const auto readings = make_readings(kReadings, kSeed);
  const auto test = make_readings(kTestReadings, kSeed + 1);

  torch::manual_seed(kSeed);
  if (edited("gan-rank-seed-before-models")) manual_seed_per_rank(kSeed, rank);
  Generator generator_net;
  Critic critic_net;
  if (!edited("gan-norm-not-converted")) convert_sync_batchnorm(*generator_net, group);
  // Every rank has drawn the same weights, and the norm's statistics are those of all ranks.
  const DdpOptions options{.broadcast_buffers = false,
                           .init_sync = edited("gan-broadcasts-weights-anyway")};
  DistributedDataParallel<Generator> generator(generator_net, group, options);
  DistributedDataParallel<Critic> critic(critic_net, group, options);
  Adam generator_optimizer(generator.parameters(), AdamOptions(2e-3).betas({0.5, 0.999}));
  const double critic_rate = edited("gan-critic-rate-on-last-rank") && is_last ? 2e-4 : 2e-3;
  Adam critic_optimizer(
      edited("gan-critic-optimizer-takes-generator") ? generator.parameters() : critic.parameters(),
      AdamOptions(critic_rate).betas({0.5, 0.999}));
  if (!edited("gan-noise-repeats-on-ranks")) manual_seed_per_rank(kSeed, rank);

  DistributedSampler sampler({.dataset_size = kReadings,
                              .num_replicas = world_size,
                              .rank = edited("gan-sampler-of-rank-zero") ? 0 : rank,
                              .seed = kSeed});
  const auto batch_size = edited("gan-batch-size-on-last-rank") && is_last ? kBatch / 2 : kBatch;
  std::int64_t step = 0;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    report.seen.push_back(sampler.indices());
    for (const auto& ids : sampler.batches(batch_size)) {
      const auto real = readings.index_select(0, at::tensor(ids));
      const auto noise = torch::randn({real.size(0), kNoise});
      report.tokens.push_back(static_cast<std::int64_t>(1e6 * noise.sum().item<double>()));
      at::Tensor fake;
      {
        const at::AutoGradMode mode(edited("gan-fake-keeps-its-graph"));
        fake = generator(noise);
      }
      critic_optimizer.zero_grad();
      at::Tensor scores;
      if (edited("gan-critic-called-unwrapped"))
        scores = critic_net(at::cat({real, fake}));
      else
        scores = critic(at::cat({real, fake}));
      const auto halves = scores.chunk(2);
      const auto critic_loss =
          edited("gan-one-label-tensor")
              ? at::binary_cross_entropy_with_logits(
                    scores, at::cat({at::ones_like(halves[0]), at::zeros_like(halves[1])}))
              : (labelled(halves[0], 1) + labelled(halves[1], 0)) / 2;
      critic_loss.backward();
      critic_optimizer.step();
      report.losses.push_back(critic_loss.item<double>());

      auto balance = critic_loss.detach().clone();
      all_reduce(*group, balance);
      balance /= world_size;
      if (edited("gan-balance-by-own-loss")) balance = critic_loss.detach();
      if (balance.item<double>() < kBalance) {
        if (!edited("gan-zeroes-gradients-after-update")) generator_optimizer.zero_grad();
        for (auto& parameter : critic_net->parameters()) parameter.requires_grad_(false);
        labelled(critic_net(generator(torch::randn_like(noise))), 1).backward();
        for (auto& parameter : critic_net->parameters()) parameter.requires_grad_(true);
        generator_optimizer.step();
        if (edited("gan-zeroes-gradients-after-update")) generator_optimizer.zero_grad();
      }

      ++step;
      if (rank == 0 && step % (edited("gan-previews-each-step") ? 1 : kPreviewEvery) == 0) {
        report.numbers["preview"].push_back(distance_to(generator_net, test));
        if (edited("gan-stays-in-eval-after-preview")) generator.eval();
      }
    }
  }
  report.held_out = distance_to(generator_net, test);
  report.numbers["buffers"] = flat(generator_net->norm->running_mean);
  torch::nn::Module both;
  both.register_module("generator", generator_net.ptr());
  both.register_module("critic", critic_net.ptr());
  write(folder, rank, report, both);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
