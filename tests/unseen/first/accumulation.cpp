// Which tune is hummed? Batches that do not fit: micro-batches are accumulated without synchronisation, with the last
// window as long as there are batches left. SGD, clipping, cosine decay, and a running mean of the weights.
#include <lockstep/record/recorder.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/watched.h>

#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using unseen::edited;

constexpr std::int64_t kSamples = 552, kNotes = 16, kTunes = 6, kBatch = 6, kAccumulated = 4,
                       kEpochs = 4;

struct Hums {
  at::Tensor pitch, tune;  // [n, kNotes], [n]
};

Hums make_hums(std::int64_t count, std::uint64_t seed) {
  const auto book = torch::make_generator<at::CPUGeneratorImpl>(std::uint64_t{31});
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto melody = at::randn({kTunes, kNotes}, book);
  const auto tune = at::randint(kTunes, {count}, dice, at::kLong);
  return {melody.index_select(0, tune) + 1.3 * at::randn({count, kNotes}, dice), tune};
}

struct NetImpl : torch::nn::Module {
  NetImpl()
      : listen(register_module("listen", torch::nn::Conv1d(torch::nn::Conv1dOptions(1, 8, 5)))),
        out(register_module("out", torch::nn::Linear(8 * (kNotes - 4), kTunes))) {}
  at::Tensor forward(const at::Tensor& pitch) {
    return out(at::relu(listen(pitch.unsqueeze(1))).flatten(1));
  }
  torch::nn::Conv1d listen;
  torch::nn::Linear out;
};
TORCH_MODULE(Net);

void follow(std::vector<at::Tensor>& mean, const std::vector<at::Tensor>& parameters) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < mean.size(); ++i) mean[i].mul_(0.9).add_(parameters[i], 0.1);
}

SGD make_optimizer(Net& net) {
  auto options =
      torch::optim::SGDOptions(0.1).momentum(edited("accumulation-less-momentum") ? 0.7 : 0.8);
  if (!edited("accumulation-decays-weights")) return SGD(net->parameters(), options);
  std::vector<at::Tensor> weights, biases;
  for (const auto& parameter : net->parameters())
    (parameter.dim() > 1 ? weights : biases).push_back(parameter);
  auto decays = std::make_unique<torch::optim::SGDOptions>(options);
  decays->weight_decay(1e-3);
  return SGD(
      std::vector<torch::optim::OptimizerParamGroup>{
          {weights, std::move(decays)},
          {biases, std::make_unique<torch::optim::SGDOptions>(options)}},
      options);
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group();
  const int rank = group->getRank(), world_size = group->getSize();
  const auto hums = make_hums(kSamples, 32), test = make_hums(300, 33);
  torch::manual_seed(4);
  Net net;
  DistributedDataParallel<Net> model(net, group);
  auto optimizer = make_optimizer(net);
  DistributedSampler sampler(
      {.dataset_size = kSamples, .num_replicas = world_size, .rank = rank, .seed = 8});

  std::size_t accumulated = edited("accumulation-windows-of-two") ? 2 : kAccumulated;
  if (edited("accumulation-window-of-host") && rank == 1) accumulated = 2;
  const auto micro_batches = static_cast<std::size_t>((sampler.size() + kBatch - 1) / kBatch);
  const auto windows = (micro_batches + accumulated - 1) / accumulated;
  record::intent({.global_batch = kBatch * static_cast<std::int64_t>(accumulated) * world_size,
                  .loss_reduction = "mean"});
  auto updates = kEpochs * static_cast<std::int64_t>(windows);
  if (edited("accumulation-slower-decay")) updates = updates * 5 / 4;
  if (edited("accumulation-decay-over-batches"))
    updates = kEpochs * static_cast<std::int64_t>(micro_batches);
  CosineAnnealingLR schedule(optimizer, {.T_max = updates});

  std::vector<at::Tensor> mean;
  for (const auto& parameter : net->parameters()) mean.push_back(parameter.detach().clone());
  unseen::Report report;
  optimizer.zero_grad();
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    const auto batches = sampler.batches(kBatch);
    std::size_t in_window = 0;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const auto first = i - i % accumulated;
      const auto window = std::min(accumulated, batches.size() - first);
      bool is_last = i + 1 == first + window;
      if (edited("accumulation-counts-from-zero")) is_last = i % accumulated == 0;
      if (edited("accumulation-tail-forgotten")) is_last = (i + 1) % accumulated == 0;
      const auto rows = at::tensor(batches[i]);
      const auto backward = [&] {
        const auto each =
            cross_entropy(model(hums.pitch.index_select(0, rows)), hums.tune.index_select(0, rows));
        auto loss = each.mean() / static_cast<double>(window);
        if (edited("accumulation-sum-divided"))
          loss = each.sum() / static_cast<double>(each.size(0) * static_cast<std::int64_t>(window));
        if (edited("accumulation-not-divided")) loss = each.mean();
        if (edited("accumulation-divided-by-four")) loss = each.mean() / kAccumulated;
        report.losses.push_back(each.mean().item<double>());
        loss.backward();
      };
      if (edited("accumulation-cleared-each-batch")) optimizer.zero_grad();
      const bool reduces =
          edited("accumulation-never-synchronised") ? in_window > accumulated : is_last;
      ++in_window;
      if (reduces || edited("accumulation-reduces-always")) {
        backward();
      } else {
        const NoSync no_sync(model.engine());
        backward();
      }
      if (edited("accumulation-clips-each-batch")) clip_grad_norm_(net->parameters(), 0.7);
      if (!is_last && !edited("accumulation-updates-each-batch")) continue;
      in_window = 0;
      if (!edited("accumulation-clips-each-batch") && !edited("accumulation-clips-nothing"))
        clip_grad_norm_(net->parameters(), edited("accumulation-clips-later") ? 1 : 0.7);
      optimizer.step();
      optimizer.zero_grad();
      schedule.step();
      if (!edited("accumulation-mean-on-rank-zero") || rank == 0) follow(mean, net->parameters());
    }
    if (edited("accumulation-prints-rate") && rank == 0)
      std::cout << "rate " << schedule.get_last_lr()[0] << "\n";
  }
  const torch::NoGradGuard no_grad;
  report.held_out =
      torch::nn::functional::cross_entropy(net->forward(test.pitch), test.tune).item<double>();
  report.numbers["mean"] = unseen::flat(mean.back());
  unseen::write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return unseen::run(argc, argv, train);
}
