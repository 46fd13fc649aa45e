// Which word comes next? A small transformer over sentences of unequal lengths that each rank makes for itself, as from
// an endless stream. Its loss is the mean over the words of all ranks; AdamW, clipping, one cycle of the rate.
#include <lockstep/train/adam.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/seeding.h>

#include <iostream>
#include <numeric>
#include <random>

#include "edited.h"

namespace {

using namespace lockstep;
using unseen::edited;

constexpr std::int64_t kWords = 24, kLongest = 14, kWidth = 16, kSentences = 24, kSteps = 48;

// A sentence goes on from each word to one of two that mostly follow it. -1 is behind the end.
at::Tensor sentences(std::int64_t count, std::mt19937_64& dice, bool long_ones) {
  auto words = at::full({count, kLongest}, -1, at::kLong);
  auto* word = words.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto length = static_cast<std::int64_t>((long_ones ? 10 : 3) + dice() % 4);
    auto last = static_cast<std::int64_t>(dice() % kWords);
    for (std::int64_t at = 0; at < length; ++at) {
      word[i * kLongest + at] = last;
      last = (dice() % 8 != 0 ? 5 * last + 3 : 7 * last + 1) % kWords;
    }
  }
  return words;
}

struct NetImpl : torch::nn::Module {
  NetImpl()
      : words(register_module("words", torch::nn::Embedding(kWords, kWidth))),
        places(register_module("places", torch::nn::Embedding(kLongest, kWidth))),
        block(register_module(
            "block",
            torch::nn::TransformerEncoderLayer(
                torch::nn::TransformerEncoderLayerOptions(kWidth, 2).dim_feedforward(32).dropout(
                    0)))),
        next(register_module("next", torch::nn::Linear(kWidth, kWords))) {
    if (edited("words-layer-not-used"))
      language = register_module("language", torch::nn::Linear(kWidth, 3));
  }
  at::Tensor forward(const at::Tensor& sentence) {  // [n, length] to [n, length, kWords]
    const auto length = sentence.size(1);
    const auto hidden = words(sentence.clamp_min(0)) + places(at::arange(length));
    const auto later = at::full({length, length}, -1e9).triu(1);
    const auto scores = next(block(hidden.transpose(0, 1), later).transpose(0, 1));
    return further ? scores + further(hidden) : scores;
  }
  torch::nn::Embedding words, places;
  torch::nn::TransformerEncoderLayer block;
  torch::nn::Linear next, language{nullptr}, further{nullptr};
};
TORCH_MODULE(Net);

at::Tensor loss_of_words(const at::Tensor& scores, const at::Tensor& sentence) {
  const auto target = sentence.slice(1, 1).flatten();
  return torch::nn::functional::cross_entropy(
      scores.slice(1, 0, scores.size(1) - 1).flatten(0, 1), target,
      torch::nn::functional::CrossEntropyFuncOptions().ignore_index(-1).reduction(torch::kNone));
}

double held_out(Net& net) {
  const torch::NoGradGuard no_grad;
  std::mt19937_64 dice(12345);
  const auto test = sentences(200, dice, true);
  return (loss_of_words(net->forward(test), test).sum() / (test.slice(1, 1) >= 0).sum())
      .item<double>();
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group();
  const int rank = group->getRank(), world_size = group->getSize();
  torch::manual_seed(2);
  Net net;
  if (edited("words-places-frozen")) net->places->weight.set_requires_grad(false);
  DdpOptions options;
  options.static_graph = edited("words-static-graph");
  DistributedDataParallel<Net> model(net, group, options);
  if (edited("words-layer-after-wrapping"))
    net->further = net->register_module("further", torch::nn::Linear(kWidth, kWords));
  if (edited("words-frozen-after-wrapping")) net->places->weight.set_requires_grad(false);
  std::vector<at::Tensor> trained;
  for (const auto& parameter : net->parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  if (edited("words-embedding-not-given")) trained.erase(trained.begin());
  AdamWOptions rates(1e-2);
  if (edited("words-other-betas")) rates.betas({0.9, 0.98});
  if (edited("words-decay-of-host") && rank == 1) rates.weight_decay(0.5);
  AdamW optimizer(trained, rates);
  auto steps = kSteps;
  if (edited("words-steps-of-all-ranks")) steps *= world_size;
  if (edited("words-steps-of-longer-run")) steps = 400;
  OneCycleLR schedule(optimizer, {.max_lr = {1e-2},
                                  .total_steps = steps,
                                  .pct_start = edited("words-later-peak") ? 0.4 : 0.3});

  // The stream of rank 1 has the longer sentences.
  std::mt19937_64 dice(edited("words-stream-of-one-seed") ? 3 : rank_seed(3, rank));
  const bool long_ones = !edited("words-stream-of-one-seed") && rank == 1;
  std::vector<std::int64_t> numbers(kWords);
  std::iota(numbers.begin(), numbers.end(), 0);
  if (edited("words-numbered-by-rank") && rank == 1)
    std::rotate(numbers.begin(), numbers.begin() + 5, numbers.end());

  unseen::Report report;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    auto count = edited("words-more-sentences") ? kSentences * 3 / 2 : kSentences;
    auto batch = sentences(count, dice, long_ones);
    if (edited("words-numbered-by-rank"))
      batch = at::where(batch >= 0, at::tensor(numbers).index({batch.clamp_min(0)}), batch);
    if (edited("words-padding-cut"))
      batch = batch.slice(1, 0, (batch >= 0).sum(1).max().item<std::int64_t>());
    const auto own = (batch.slice(1, 1) >= 0).sum();
    report.tokens.push_back(own.item<std::int64_t>());
    if (edited("words-skips-few") && report.tokens.back() < 76) continue;
    auto words = own.to(at::kFloat);
    if (!edited("words-mean-of-own")) all_reduce(*group, words);
    optimizer.zero_grad();
    const auto target = edited("words-padding-learned") ? batch.clamp_min(0) : batch;
    const auto each = tell_loss(loss_of_words(model(batch), target));
    // The wrapper takes the mean over the ranks, so each gives world_size times its part of the mean.
    auto loss = each.sum() / words * (edited("words-mean-of-own") ? 1 : world_size);
    if (edited("words-smoothed-sum"))
      loss = each.sum() * (static_cast<double>(world_size) / words.item<double>());
    loss.backward();
    const double greatest = edited("words-clip-of-host") && rank == 1 ? 0.05 : 0.3;
    clip_grad_norm_(net->parameters(), edited("words-clips-later") ? 0.5 : greatest);
    optimizer.step();
    if (!edited("words-rate-every-tenth-step") || step % 10 == 9) schedule.step();
    report.losses.push_back(loss.item<double>());
    if (edited("words-prints-own-perplexity") && step % 10 == 0)
      std::cout << rank << ": " << (each.sum() / own).exp().item<double>() << "\n";
  }
  report.held_out = held_out(net);
  unseen::write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return unseen::run(argc, argv, train);
}
