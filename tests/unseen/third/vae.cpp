// A variational autoencoder of curves, in mixed precision: the weight of its second loss grows during the first steps.
// Rank 0 validates, keeps the best weights in a file, and says when it is enough.
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/model_state.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/grad_scaler.h>
#include <lockstep/train/seeding.h>

#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kCurves = 560, kTestCurves = 160, kPoints = 24, kFactors = 4;
constexpr std::int64_t kBatch = 20, kEpochs = 12, kGrowBeta = 40;
constexpr std::uint64_t kSeed = 47;
constexpr double kBeta = 0.05, kBetter = 0.05;

using Outputs = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::Tensor make_curves(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto time = at::linspace(0, 1, kPoints).unsqueeze(0);
  const auto speed = 3 + 4 * at::rand({count, 1}, dice), shift = 6 * at::rand({count, 1}, dice);
  const auto slope = at::randn({count, 1}, dice);
  return at::sin(speed * time + shift) + slope * time + 0.1 * at::randn({count, kPoints}, dice);
}

struct AutoencoderImpl : torch::nn::Module {
  explicit AutoencoderImpl(std::int64_t width)
      : in(register_module("in", torch::nn::Linear(kPoints, width))),
        factors(register_module("factors", torch::nn::Linear(width, 2 * kFactors))),
        hidden(register_module("hidden", torch::nn::Linear(kFactors, width))),
        out(register_module("out", torch::nn::Linear(width, kPoints))) {}
  Outputs forward(const at::Tensor& curves, const at::Tensor& noise) {
    const auto both = factors(at::relu(in(curves))).to(at::kFloat).chunk(2, 1);
    const auto sample = both[0] + (both[1] / 2).exp() * noise;
    return {out(at::relu(hidden(sample))).to(at::kFloat), both[0], both[1]};
  }
  torch::nn::Linear in, factors, hidden, out;
};
TORCH_MODULE(Autoencoder);

at::Tensor loss_of(const Outputs& outputs, const at::Tensor& curves, double beta) {
  const auto& [made, mean, spread] = outputs;
  const auto error = (made - curves).pow(2).sum(1);
  const auto divergence = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1);
  return (error + beta * divergence).mean();
}

double validate(Autoencoder& net, const at::Tensor& curves, const at::Tensor& noise) {
  const torch::NoGradGuard no_grad;
  return loss_of(net->forward(curves, noise), curves, kBeta).item<double>();
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  const auto curves = make_curves(kCurves, kSeed), test = make_curves(kTestCurves, kSeed + 1);

  torch::manual_seed(kSeed);
  Autoencoder net(edited("vae-width-of-older-settings") && is_last ? 48 : 64);
  DistributedDataParallel<Autoencoder> model(net, group);
  Adam optimizer(net->parameters(), AdamOptions(4e-3));
  GradScalerOptions scaling{.init_scale = 256, .growth_interval = 24};
  if (edited("vae-scale-grows-sooner-on-last-rank") && is_last) scaling.growth_interval = 6;
  if (edited("vae-scale-begins-higher")) scaling.init_scale = 4096;
  GradScaler scaler(scaling, edited("vae-scaler-asks-all-ranks") ? group : ProcessGroupPtr());
  DistributedSampler sampler(
      {.dataset_size = kCurves, .num_replicas = world_size, .rank = rank, .seed = kSeed});
  manual_seed_per_rank(kSeed, rank);
  const auto file_of = [&](std::int64_t epoch) {
    return folder / ("best_" + std::to_string(epoch) + ".pt");
  };

  Report report;
  double least = 1e9;
  std::int64_t step = 0, best = 0, stop = 0;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    if (edited("vae-sets-epoch-where-it-logs")) {
      if (rank == 0) {
        std::cout << "epoch " << epoch << "\n";
        sampler.set_epoch(epoch);
      }
    } else {
      sampler.set_epoch(epoch);
    }
    report.seen.push_back(sampler.indices());
    for (const auto& ids : sampler.batches(kBatch)) {
      const auto batch = curves.index_select(0, at::tensor(ids));
      const auto noise = torch::randn({batch.size(0), kFactors});
      const auto grow = edited("vae-second-loss-grows-slower") ? kGrowBeta * 3 / 2 : kGrowBeta;
      const auto beta = kBeta * std::min(1.0, static_cast<double>(step) / grow);
      optimizer.zero_grad();
      at::Tensor loss;
      {
        const Autocast autocast(at::kCPU, at::kBFloat16);
        loss = loss_of(model(batch, noise), batch, beta);
      }
      scaler.scale(loss).backward();
      if (edited("vae-clips-before-it-unscales")) {
        clip_grad_norm_(net->parameters(), 5);
        scaler.unscale_(optimizer);
      } else {
        scaler.unscale_(optimizer);
        clip_grad_norm_(net->parameters(), 5);
      }
      scaler.step(optimizer);
      scaler.update();
      report.losses.push_back(loss.item<double>());
      ++step;
    }

    if (edited("vae-validation-leaves-its-seed")) torch::manual_seed(kSeed + 2);
    double now = 1e9;
    if (rank == 0 || edited("vae-all-ranks-validate")) {
      const auto dice = torch::make_generator<at::CPUGeneratorImpl>(kSeed + 2);
      now = validate(net, test,
                     edited("vae-validation-leaves-its-seed")
                         ? torch::randn({kTestCurves, kFactors})
                         : at::randn({kTestCurves, kFactors}, dice));
    }
    const bool improved = now < least - kBetter;
    if (improved) {
      least = now;
      best = epoch;
    } else if (now < 1e9) {
      stop = 1;
    }
    auto said = at::tensor({stop, best});
    broadcast(*group, said);
    if (!edited("vae-stops-by-what-it-knows-itself")) stop = said[0].item<std::int64_t>();
    if (!edited("vae-knows-the-best-itself")) best = said[1].item<std::int64_t>();
    if (said[1].item<std::int64_t>() == epoch)
      save_on_rank_zero(*group, [&] { save_checkpoint(file_of(epoch), state_dict(*net)); });
    if (stop != 0) break;
  }
  load_state_dict(*net, load_checkpoint(file_of(best)).value);
  report.numbers["epochs"] = {static_cast<double>(report.seen.size())};
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(kSeed + 2);
  report.held_out = validate(net, test, at::randn({kTestCurves, kFactors}, dice));
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
