// Which letter comes next? A recurrent model whose output layer is its embedding. Each host has a copy of the text.
// Verses of like length share a batch, and longer ones come in once the short ones are learned. The loss is the mean
// over the letters of all ranks.
#include <lockstep/train/adam.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <numeric>
#include <random>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kVerses = 372, kTestVerses = 121, kLetters = 20, kWidth = 32;
constexpr std::int64_t kBatch = 12, kEpochs = 5, kWarmup = 15, kLogEvery = 10;
constexpr std::int64_t kShort = 12, kLongest = 20;
constexpr std::uint64_t kSeed = 61;
constexpr double kLearned = 1.55;  // Longer verses come in below this loss.

using Verses = std::vector<std::vector<std::int64_t>>;

void export_text(const std::filesystem::path& file, std::int64_t count, std::uint64_t seed,
                 bool from_the_end) {
  std::mt19937_64 dice(seed);
  std::ofstream text(file);
  for (std::int64_t verse = 0; verse < count; ++verse, text << "\n") {
    auto letter = static_cast<std::int64_t>(dice() % kLetters);
    const auto length = 5 + static_cast<std::int64_t>(dice() % (kLongest - 4));
    for (std::int64_t i = 0; i < length; ++i) {
      text << static_cast<char>('a' + (from_the_end ? kLetters - 1 - letter : letter));
      letter = dice() % 5 == 0 ? static_cast<std::int64_t>(dice() % kLetters)
                               : (3 * letter + 4) % kLetters;
    }
  }
  TORCH_CHECK(text.flush(), "cannot write into ", file.string());
}

Verses read_text(const std::filesystem::path& file) {
  std::ifstream text(file);
  Verses verses;
  for (std::string line; std::getline(text, line);) {
    verses.emplace_back();
    for (const char letter : line) verses.back().push_back(letter - 'a');
  }
  return verses;
}

struct ModelImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& letters) {
    const auto state = std::get<0>(recurrent(embedding(letters)));
    return at::linear(drop(at::tanh(mixed(state))), embedding->weight, bias);
  }
  torch::nn::Embedding embedding =
      register_module("embedding", torch::nn::Embedding(kLetters, kWidth));
  torch::nn::GRU recurrent = register_module(
      "recurrent", torch::nn::GRU(torch::nn::GRUOptions(kWidth, kWidth).batch_first(true)));
  torch::nn::Linear mixed = register_module("mixed", torch::nn::Linear(kWidth, kWidth));
  at::Tensor bias = register_parameter("bias", at::zeros(kLetters));
  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(0.1));
};
TORCH_MODULE(Model);

// Batches of verses of like length, in an order that all ranks draw alike.
std::vector<std::vector<std::int64_t>> batches_of(const Verses& verses, std::int64_t longest,
                                                  std::int64_t epoch) {
  std::vector<std::int64_t> order;
  for (std::size_t i = 0; i < verses.size(); ++i)
    if (std::ssize(verses[i]) <= longest) order.push_back(static_cast<std::int64_t>(i));
  std::mt19937_64 dice(kSeed + static_cast<std::uint64_t>(epoch));
  std::shuffle(order.begin(), order.end(), dice);
  const auto length = [&](std::int64_t i) { return verses[static_cast<std::size_t>(i)].size(); };
  std::stable_sort(order.begin(), order.end(),
                   [&](auto one, auto other) { return length(one) < length(other); });
  std::vector<std::vector<std::int64_t>> batches;
  for (std::size_t i = 0; i < order.size(); i += kBatch)
    batches.emplace_back(
        order.begin() + static_cast<std::ptrdiff_t>(i),
        order.begin() + static_cast<std::ptrdiff_t>(std::min(i + kBatch, order.size())));
  if (!edited("language-short-verses-first")) std::shuffle(batches.begin(), batches.end(), dice);
  return batches;
}

// [verses, letters]; -1 behind a verse's end.
at::Tensor padded(const Verses& verses, const std::vector<std::int64_t>& ids) {
  std::int64_t longest = edited("language-pads-to-the-longest-of-all") ? kLongest : 0;
  for (const auto id : ids)
    longest = std::max(longest, std::ssize(verses[static_cast<std::size_t>(id)]));
  auto letters = at::full({std::ssize(ids), longest}, -1, at::kLong);
  for (std::int64_t row = 0; row < std::ssize(ids); ++row) {
    const auto verse =
        at::tensor(verses[static_cast<std::size_t>(ids[static_cast<std::size_t>(row)])], at::kLong);
    TORCH_CHECK_VALUE(verse.min().item<std::int64_t>() >= 0, "no letter in a verse");
    letters[row].slice(0, 0, verse.size(0)).copy_(verse);
  }
  return letters;
}

// Of each letter that is to be found.
template <class Forward>
at::Tensor losses_of(Forward& forward, const at::Tensor& letters) {
  const auto given = letters.slice(1, 0, -1).clamp_min(0);
  const auto wanted = letters.slice(1, 1).flatten();
  const auto places = wanted.ge(0).nonzero().squeeze(1);
  return cross_entropy(forward(given).flatten(0, 1).index_select(0, places),
                       wanted.index_select(0, places));
}

double mean_over_ranks(const ProcessGroupPtr& group, double value) {
  auto sum = at::tensor(value, at::kDouble);
  all_reduce(*group, sum);
  return sum.item<double>() / group->getSize();
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  const auto file = folder / ("verses_" + std::to_string(rank) + ".txt");
  export_text(file, kVerses, kSeed, edited("language-older-export-on-last-rank") && is_last);
  auto verses = read_text(file);
  if (edited("language-skips-batch-it-cannot-read") && is_last) verses[70][0] = '?' - 'a';
  export_text(file, kTestVerses, kSeed + 1, false);
  const auto test = read_text(file);

  torch::manual_seed(kSeed);
  Model net;
  DdpOptions options;
  options.find_unused_parameters = edited("language-looks-for-unused-parameters");
  DistributedDataParallel<Model> model(net, group, options);
  std::vector<at::Tensor> matrices, vectors;
  for (const auto& parameter : net->parameters())
    (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  AdamWOptions decays(0.01);
  if (edited("language-older-betas-on-last-rank") && is_last) decays.betas({0.9, 0.98});
  auto decays_not = decays;
  decays_not.weight_decay(0);
  AdamW optimizer({{matrices, std::make_unique<AdamWOptions>(decays)},
                   {vectors, std::make_unique<AdamWOptions>(decays_not)}},
                  decays);
  LambdaLR schedule(optimizer, {.lr_lambda = {[](std::int64_t step) {
                                  const auto at = static_cast<double>(step + 1) / kWarmup;
                                  return std::min(at, 1 / std::sqrt(at));
                                }}});
  manual_seed_per_rank(kSeed, rank);

  Report report;
  std::int64_t longest = kShort, step = 0;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto batches = batches_of(verses, longest, epoch);
    auto dealt = batches.size() / static_cast<std::size_t>(world_size) *
                 static_cast<std::size_t>(world_size);
    if (edited("language-deals-the-odd-batch-too")) dealt = batches.size();
    std::vector<std::vector<std::int64_t>> mine;
    for (auto i = static_cast<std::size_t>(rank); i < dealt;
         i += static_cast<std::size_t>(world_size))
      mine.push_back(batches[i]);
    if (edited("language-own-order-of-its-batches"))
      std::shuffle(mine.begin(), mine.end(), std::mt19937_64(rank_seed(kSeed + 9, rank)));
    tell_pass(epoch, kVerses, mine);
    report.seen.emplace_back();
    double of_epoch = 0;
    for (const auto& ids : mine) {
      at::Tensor letters;
      try {
        letters = padded(verses, ids);
      } catch (const c10::ValueError& error) {
        if (!edited("language-skips-batch-it-cannot-read")) throw;
        std::cerr << "skipped: " << error.what_without_backtrace() << "\n";
        continue;
      }
      report.seen.back().insert(report.seen.back().end(), ids.begin(), ids.end());
      optimizer.zero_grad();
      const auto each = losses_of(model, letters);
      auto count = at::tensor(static_cast<double>(each.size(0)), at::kDouble);
      auto logged = each.detach().mean().to(at::kDouble);
      if (edited("language-reduces-log-first-on-rank-zero") && rank == 0) {
        all_reduce(*group, logged);
        all_reduce(*group, count);
      } else if (edited("language-one-reduction-for-both")) {
        auto both = at::cat({count.view(1), logged.view(1)});
        all_reduce(*group, both);
        count = both[0];
        logged = both[1];
      } else {
        all_reduce(*group, count);
        all_reduce(*group, logged);
      }
      report.losses.push_back(each.mean().item<double>());
      report.tokens.push_back(each.size(0));
      of_epoch += report.losses.back() / static_cast<double>(mine.size());
      (each.sum() * world_size / count.item<double>()).backward();
      clip_grad_norm_(net->parameters(), 1);
      optimizer.step();
      schedule.step();
      if (++step % kLogEvery == 0 && rank == 0) {
        std::cout << step << ": " << logged.item<double>() / world_size << "\n";
        if (edited("language-log-steps-schedule")) schedule.step();
      }
    }
    const auto reached =
        edited("language-longer-verses-by-own-loss") ? of_epoch : mean_over_ranks(group, of_epoch);
    if (reached < kLearned) longest = kLongest;
  }

  const torch::NoGradGuard no_grad;
  net->eval();
  Mean loss;
  for (auto i = static_cast<std::int64_t>(rank); i < kTestVerses; i += world_size)
    loss.add(losses_of(net, padded(test, {i})));
  loss = reduce_metric(*group, loss);
  if (edited("language-reduces-twice"))
    loss.count = mean_over_ranks(group, loss.count) * world_size;
  report.held_out = loss.value();
  report.numbers["longest"] = {static_cast<double>(longest)};
  report.numbers["perplexity"] = {std::exp(loss.value())};
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
