#include <lockstep/lesson/training.h>
#include <lockstep/train/loss.h>

#include <algorithm>

namespace lockstep {
namespace {

constexpr double kLearningRate = 0.01;

Mlp on_device(Mlp module, c10::Device device) {
  module->to(device);
  return module;
}

using Batches = std::vector<std::vector<std::int64_t>>;

// One rank's batches, by pass. Empty where not every step's size was written down, or a pass broke off.
std::vector<Batches> batches_of(const Outcome& outcome) {
  const auto drawn = outcome.ids.find("train");
  const auto sizes = outcome.figures.find("batch_size");
  if (drawn == outcome.ids.end() || sizes == outcome.figures.end() ||
      !outcome.figures.contains("hidden"))
    return {};
  auto size = sizes->second.begin();
  std::vector<Batches> passes;
  for (const auto& ids : drawn->second) {
    passes.emplace_back();
    for (auto next = ids.begin(); next != ids.end(); ++size) {
      if (size == sizes->second.end() || *size < 1 || *size > static_cast<double>(ids.end() - next))
        return {};
      const auto end = next + static_cast<std::ptrdiff_t>(*size);
      passes.back().emplace_back(next, end);
      next = end;
    }
  }
  return size == sizes->second.end() ? passes : std::vector<Batches>{};
}

// All ranks' batches, step by step; empty where the ranks took different numbers of steps.
std::vector<Batches> global_batches(const Outcomes& outcomes) {
  auto passes = batches_of(outcomes.front());
  for (std::size_t rank = 1; rank < outcomes.size(); ++rank) {
    const auto theirs = batches_of(outcomes[rank]);
    if (theirs.size() != passes.size()) return {};
    for (std::size_t pass = 0; pass < passes.size(); ++pass) {
      if (theirs[pass].size() != passes[pass].size()) return {};
      for (std::size_t step = 0; step < passes[pass].size(); ++step)
        passes[pass][step].insert(passes[pass][step].end(), theirs[pass][step].begin(),
                                  theirs[pass][step].end());
    }
  }
  return passes;
}

}  // namespace

Trainer::Trainer(RankContext& context, TensorData data, std::int64_t hidden)
    : context_(context),
      data_(std::move(data)),
      module_(on_device(Mlp(784, hidden, 10), context.device())),
      ddp_(module_, context.group()),
      optimizer_(module_->parameters(), kLearningRate) {
  add_figure(context, "hidden", static_cast<double>(hidden));
}

void Trainer::step(const std::vector<std::int64_t>& positions) {
  step(take(data_, positions));
}

void Trainer::step(const TensorData& batch) {
  optimizer_.zero_grad();
  const auto outputs = ddp_(batch.inputs.to(context_.device()));
  cross_entropy(outputs, batch.targets.to(context_.device())).mean().backward();
  optimizer_.step();
}

std::vector<double> one_process_losses(const Outcomes& outcomes, std::uint64_t seed) {
  const auto passes = global_batches(outcomes);
  if (passes.empty()) return {};
  std::int64_t samples = 0;
  for (const auto& pass : passes)
    for (const auto& batch : pass)
      for (const auto id : batch) samples = std::max(samples, id + 1);
  const auto data = fashion_mnist_or_synthetic(Split::train, samples);
  torch::manual_seed(seed);
  Mlp module(784, static_cast<std::int64_t>(outcomes.front().figures.at("hidden").front()), 10);
  torch::optim::SGD optimizer(module->parameters(), kLearningRate);
  std::vector<double> losses;
  for (const auto& pass : passes) {
    Mean loss_of_epoch;
    for (const auto& ids : pass) {
      const auto batch = rows_of(data, ids);
      optimizer.zero_grad();
      const auto each = torch::cross_entropy_loss(module->forward(batch.inputs), batch.targets, {},
                                                  at::Reduction::None);
      each.mean().backward();
      optimizer.step();
      loss_of_epoch.add(each);
    }
    losses.push_back(loss_of_epoch.value());
  }
  return losses;
}

}  // namespace lockstep
