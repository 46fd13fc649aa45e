// An autoencoder takes the noise out of signals. Gradients are reduced by hand, as one flat tensor; what is evaluated
// is a moving average of the weights; the rate is halved where the validation's error no longer falls.
#include <lockstep/dist/process_group.h>
#include <lockstep/record/recorder.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/watched.h>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kSignals = 1280, kTestSignals = 300, kMoments = 24;
constexpr std::int64_t kBatch = 32, kEpochs = 4;
constexpr double kNoise = 0.4, kRate = 0.1, kKeep = 0.95, kSparse = 0.1, kBetter = 0.47,
                 kClip = 0.2;
constexpr int kSeed = 40;

// Sums of two waves. Now and then a sensor had no power for a moment.
at::Tensor make_signals(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto time = at::arange(kMoments).unsqueeze(0) * 0.26;
  const auto phase = 6.3 * at::rand({count, 2}, dice);
  auto signals = at::sin(time + phase.slice(1, 0, 1)) + at::sin(2 * time + phase.slice(1, 1, 2));
  return signals.masked_fill(at::rand(signals.sizes(), dice) < 2e-4, NAN);
}

struct CoderImpl : torch::nn::Module {
  at::Tensor encode(const at::Tensor& signals) { return at::tanh(down(signals.matmul(mixing))); }
  at::Tensor decode(const at::Tensor& code) { return up(at::relu(wide(code))); }
  at::Tensor mixing =
      register_buffer("mixing", torch::randn({kMoments, kMoments}) / std::sqrt(kMoments));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(kMoments, 8));
  torch::nn::Linear wide = register_module("wide", torch::nn::Linear(8, 40));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(40, kMoments));
};
TORCH_MODULE(Coder);

void copy_weights(Coder& to, Coder& from) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < to->parameters().size(); ++i)
    to->parameters()[i].copy_(from->parameters()[i]);
  to->mixing.copy_(from->mixing);
}

// Rank 0's weights, to all.
void broadcast_model(c10d::ProcessGroup& group, Coder& coder) {
  const int root = edited("denoiser-begins-with-last-ranks-weights") ? group.getSize() - 1 : 0;
  auto tensors = coder->parameters();
  if (!edited("denoiser-buffer-not-broadcast")) tensors.push_back(coder->mixing);
  for (const auto& tensor : tensors) {
    auto values = tensor.detach();
    broadcast(group, values, root);
  }
}

void average_gradients(c10d::ProcessGroup& group, const std::vector<at::Tensor>& parameters) {
  if (edited("denoiser-reduces-each-gradient")) {
    for (const auto& parameter : parameters) {
      all_reduce(group, parameter.mutable_grad());
      parameter.mutable_grad() /= group.getSize();
    }
    return;
  }
  std::vector<at::Tensor> parts;
  for (const auto& parameter : parameters) parts.push_back(parameter.grad().flatten());
  auto flat_gradient = at::cat(parts);
  all_reduce(group, flat_gradient,
             edited("denoiser-takes-the-greatest") ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM);
  if (!edited("denoiser-sum-not-divided")) flat_gradient /= group.getSize();
  std::int64_t next = 0;
  const auto last = edited("denoiser-last-gradient-not-copied-back") ? 1U : 0U;
  for (std::size_t i = 0; i + last < parameters.size(); ++i) {
    auto& gradient = parameters[i].mutable_grad();
    gradient.copy_(flat_gradient.slice(0, next, next + gradient.numel()).view_as(gradient));
    next += gradient.numel();
  }
}

// This rank's signals of an epoch.
at::Tensor share_of(std::int64_t epoch, const c10d::ProcessGroup& group) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(
      static_cast<std::uint64_t>(kSeed + (edited("denoiser-one-order-for-ever") ? 0 : epoch)));
  const auto order = edited("denoiser-order-of-own-dice") ? torch::randperm(kSignals)
                                                          : at::randperm(kSignals, dice);
  const auto own = kSignals / group.getSize();
  if (edited("denoiser-deals-contiguous-shares"))
    return order.slice(0, group.getRank() * own, (group.getRank() + 1) * own);
  return order.slice(0, group.getRank(), std::nullopt, group.getSize()).contiguous();
}

Mean error_on(Coder& coder, const at::Tensor& signals) {
  const torch::NoGradGuard no_grad;
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(kSeed);
  const auto noisy = signals + kNoise * at::randn(signals.sizes(), dice);
  Mean error;
  error.add((coder->decode(coder->encode(noisy)) - signals).pow(2));
  return error;
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  Report report;
  const auto signals = make_signals(kSignals, 1);
  const auto test = make_signals(kTestSignals, 2).nan_to_num(0);
  const auto own_test = test.slice(0, rank, std::nullopt, world_size);

  // Ranks draw other noise, and at first other weights.
  torch::manual_seed(kSeed + (edited("denoiser-one-seed-for-all") ? 0 : rank));
  Coder coder, average;
  if (edited("denoiser-average-copied-too-early")) copy_weights(average, coder);
  broadcast_model(*group, coder);
  if (!edited("denoiser-average-copied-too-early")) copy_weights(average, coder);
  const auto parameters = coder->parameters();
  SGD optimizer(parameters, torch::optim::SGDOptions(kRate).momentum(0.9));
  record::intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});

  double best = INFINITY;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto ids = share_of(epoch, *group);
    report.seen.emplace_back(ids.data_ptr<std::int64_t>(),
                             ids.data_ptr<std::int64_t>() + ids.size(0));
    for (const auto& batch : ids.split(kBatch)) {
      auto clean = signals.index_select(0, batch);
      if (edited("denoiser-skips-batch-with-outage")) {
        if (clean.isnan().any().item<bool>()) continue;
      } else {
        clean = clean.nan_to_num(0);
      }
      const auto noise = torch::randn_like(clean);
      report.tokens.push_back(static_cast<std::int64_t>(1e6 * noise.sum().item<double>()));
      optimizer.zero_grad();
      const auto code = coder->encode(clean + kNoise * noise);
      const auto loss = (coder->decode(code) - clean).pow(2).mean();
      const auto penalty = kSparse * code.abs().mean();
      if (edited("denoiser-penalty-after-reduction")) {
        loss.backward({}, true);
        average_gradients(*group, parameters);
        penalty.backward();
      } else if (edited("denoiser-clips-own-gradient")) {
        (loss + penalty).backward();
        clip_grad_norm_(parameters, kClip);
        average_gradients(*group, parameters);
      } else {
        (loss + penalty).backward();
        average_gradients(*group, parameters);
      }
      if (!edited("denoiser-clips-own-gradient")) clip_grad_norm_(parameters, kClip);
      optimizer.step();
      report.losses.push_back(loss.item<double>());

      const torch::NoGradGuard no_grad;
      if (edited("denoiser-average-on-rank-zero-only") && rank != 0) continue;
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        auto kept = average->parameters()[i];
        if (edited("denoiser-averages-by-lerp"))
          kept.lerp_(parameters[i], 1 - kKeep);
        else
          kept.copy_(kKeep * kept + (1 - kKeep) * parameters[i]);
      }
    }
    auto error = error_on(coder, own_test);
    if (!edited("denoiser-plateau-by-own-validation")) error = reduce_metric(*group, error);
    report.numbers["validation"].push_back(error.value());
    auto& options = optimizer.param_groups()[0].options();
    if (error.value() > kBetter * best) options.set_lr(options.get_lr() / 2);
    best = std::min(best, error.value());
    report.numbers["rate"].push_back(options.get_lr());
  }
  report.held_out = reduce_metric(*group, error_on(average, own_test)).value();
  report.numbers["buffers"] = flat(coder->mixing);
  torch::nn::Module both;
  both.register_module("coder", coder.ptr());
  both.register_module("average", average.ptr());
  write(folder, rank, report, both);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
