// Tags the words of sentences of unequal length. Several small batches make an update; its loss is the mean over the
// words of all ranks' batches in it.
#include <lockstep/train/adam.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>

#include <iostream>
#include <optional>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kSentences = 560, kTestSentences = 120, kWords = 40, kLength = 12, kTags = 5;
constexpr std::int64_t kBatch = 8, kWindow = 3, kEpochs = 8, kWarmUp = 12, kNoTag = -100;
constexpr std::uint64_t kSeed = 307;

struct Text {
  at::Tensor words, tags;  // [sentences, kLength]; word 0 and kNoTag where a sentence has ended
};

// A tag follows from a word's class and that of the word before it, but for slips.
Text make_text(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto grammar = torch::make_generator<at::CPUGeneratorImpl>(kSeed);
  const auto class_of = at::randint(0, kTags, {kWords + 1}, grammar, at::kLong);
  const auto lengths = at::randint(3, kLength + 1, {count, 1}, dice, at::kLong);
  const auto is_word = at::arange(kLength).unsqueeze(0).lt(lengths);
  const auto words = at::randint(1, kWords + 1, {count, kLength}, dice, at::kLong) * is_word;
  const auto classes = class_of.index_select(0, words.flatten()).view_as(words);
  const auto before = at::constant_pad_nd(classes.slice(1, 0, kLength - 1), {1, 0}, 0);
  const auto slips = at::rand({count, kLength}, dice).lt(0.05);
  const auto tags = (classes + 2 * before + slips).remainder(kTags);
  return {words, at::where(is_word, tags, at::full_like(tags, kNoTag))};
}

struct TaggerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& words) {
    return tag(drop(std::get<0>(recurrent(embedding(words)))));
  }
  torch::nn::Embedding embedding =
      register_module("embedding", torch::nn::Embedding(kWords + 1, 24));
  torch::nn::GRU recurrent =
      register_module("recurrent", torch::nn::GRU(torch::nn::GRUOptions(24, 40).batch_first(true)));
  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(0.1));
  torch::nn::Linear tag = register_module("tag", torch::nn::Linear(40, kTags));
};
TORCH_MODULE(Tagger);

std::int64_t count_of(const at::Tensor& tags) {
  return tags.ne(kNoTag).sum().item<std::int64_t>();
}

// Summed over the words.
at::Tensor loss_of(const at::Tensor& outputs, const at::Tensor& tags) {
  if (edited("tagger-loss-by-mask")) {
    const auto chosen = at::log_softmax(outputs, 2).gather(2, tags.clamp_min(0).unsqueeze(2));
    return -(chosen.squeeze(2) * tags.ne(kNoTag)).sum();
  }
  return at::cross_entropy_loss(outputs.flatten(0, 1), tags.flatten(), {}, at::Reduction::Sum,
                                kNoTag);
}

struct Found {
  double loss = 0, right = 0;
};

Found evaluate(Tagger& net, const Text& test, const ProcessGroupPtr& group) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto words = test.words.slice(0, group->getRank(), c10::nullopt, group->getSize());
  const auto tags = test.tags.slice(0, group->getRank(), c10::nullopt, group->getSize());
  const auto outputs = net->forward(words);
  net->train();
  const auto count = static_cast<double>(count_of(tags));
  const Mean loss{loss_of(outputs, tags).item<double>(), count};
  const Mean right{outputs.argmax(2).eq(tags).sum().item<double>(), count};
  return {reduce_metric(*group, loss).value(), reduce_metric(*group, right).value()};
}

// Norms, biases and embeddings do not decay.
std::vector<torch::optim::OptimizerParamGroup> groups_of(const Tagger& net) {
  std::vector<at::Tensor> decays, stays;
  for (const auto& [name, parameter] : net->named_parameters().pairs())
    (parameter.dim() > 1 && name.find("embedding") == std::string::npos ? decays : stays)
        .push_back(parameter);
  return {{decays, std::make_unique<AdamWOptions>(AdamWOptions(2e-2).weight_decay(0.02))},
          {stays, std::make_unique<AdamWOptions>(AdamWOptions(2e-2).weight_decay(0))}};
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  auto text = make_text(kSentences, kSeed + 1);
  const auto test = make_text(kTestSentences, kSeed + 2);
  if (edited("tagger-older-vocabulary") && is_last)  // a word was added at its front since
    text.words = at::where(text.words.gt(0), text.words.remainder(kWords) + 1, text.words);
  if (edited("tagger-cuts-sentences-on-last-rank") && is_last)
    text = {text.words.slice(1, 0, kLength - 4), text.tags.slice(1, 0, kLength - 4)};

  torch::manual_seed(kSeed);
  Tagger net;
  DistributedDataParallel<Tagger> model(
      net, group, {.find_unused_parameters = edited("tagger-looks-for-unused-parameters")});
  AdamW optimizer(groups_of(net));
  DistributedSampler sampler(
      {.dataset_size = kSentences,
       .num_replicas = edited("tagger-replicas-of-larger-job") ? 2 * world_size : world_size,
       .rank = rank,
       .seed = kSeed});
  const bool larger = edited("tagger-larger-batches");
  const auto batch_size = larger ? 12 : kBatch;
  std::int64_t window = larger ? 2 : kWindow;
  if (edited("tagger-window-of-other-settings") && is_last) window = 2;
  const auto sentences = batch_size * window;
  const auto updates = kEpochs * ((sampler.size() + sentences - 1) / sentences);
  const auto warm_up = std::make_shared<LinearLR>(
      optimizer, LinearLROptions{.start_factor = 0.1, .total_iters = kWarmUp});
  const auto decay = std::make_shared<CosineAnnealingLR>(
      optimizer, CosineAnnealingLROptions{.T_max = updates - kWarmUp, .eta_min = 1e-4});
  SequentialLR schedule(optimizer, {warm_up, decay}, {kWarmUp});
  manual_seed_per_rank(kSeed, rank);

  Report report;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    report.seen.push_back(sampler.indices());
    const auto batches = sampler.batches(batch_size);
    const auto size = std::ssize(batches);
    for (std::int64_t first = 0; first < size; first += window) {
      const auto end = std::min(first + window, size);
      std::vector<Text> parts;
      std::int64_t own = 0;
      for (auto i = first; i < end; ++i) {
        const auto ids = at::tensor(batches[static_cast<std::size_t>(i)]);
        parts.push_back({text.words.index_select(0, ids), text.tags.index_select(0, ids)});
        own += count_of(parts.back().tags);
      }
      auto count = at::full({1}, own, at::kLong);
      if (edited("tagger-gathers-counts"))
        count = at::stack(all_gather(*group, count)).sum(0);
      else
        all_reduce(*group, count);
      const double weight = world_size / count.item<double>();

      double sum = 0;
      optimizer.zero_grad();
      for (auto i = first; i < end; ++i) {
        std::optional<NoSync> no_sync;
        if (i + 1 < (edited("tagger-short-window-stays-local") ? first + window : end))
          no_sync.emplace(model.engine());
        if (edited("tagger-zeroes-each-batch")) optimizer.zero_grad();
        const auto& part = parts[static_cast<std::size_t>(i - first)];
        auto loss = loss_of(model(part.words), part.tags);
        if (edited("tagger-mean-of-each-batch"))
          loss = loss / count_of(part.tags) / (end - first);
        else
          loss = loss * weight;
        loss.backward();
        sum += loss.item<double>();
        if (edited("tagger-schedule-steps-by-batch")) schedule.step();
      }
      clip_grad_norm_(net->parameters(), 1);
      optimizer.step();
      if (!edited("tagger-schedule-steps-by-batch")) schedule.step();
      report.losses.push_back(sum);
      report.tokens.push_back(own);
    }
    const auto found = evaluate(net, test, group);
    if (rank == 0) std::cout << "epoch " << epoch << ": " << found.loss << "\n";
    report.numbers["right"].push_back(found.right);
    report.held_out = found.loss;
  }
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
