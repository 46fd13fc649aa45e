// What was the word meant to be? A small transformer corrects typing errors letter by letter. Gradients of three small
// batches make one update, under AdamW with a warmup and a cosine; the loss is the mean over the letters of all small
// batches of all ranks.
#include <lockstep/train/adam.h>
#include <lockstep/train/agreement.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kLongest = 9, kWidth = 32, kEpochs = 6, kBatch = 8, kWindow = 3;
constexpr std::int64_t kTraining = 384, kValidation = 96, kTest = 300;
constexpr std::uint64_t kSeed = 4711;
constexpr double kGoodEnough = 0.36;

const std::vector<std::string> kDictionary = {
    "harbour", "island",  "stone",  "thunder", "north",  "lantern", "rail",    "sailor",
    "bread",   "shelter", "loud",   "orient",  "marble", "tribune", "header",  "bundle",
    "rust",    "lines",   "outset", "hotels",  "tiles",  "sound",   "blunder", "threads"};

struct Words {
  at::Tensor typed, meant;  // [n, longest]: 0 behind a word's end
};

// Letters are numbered from 1 on, in the order of the alphabet.
std::map<char, std::int64_t> number_letters(bool is_last) {
  std::string letters;
  for (const auto& word : kDictionary) letters += word;
  if (!(edited("spelling-numbers-of-the-older-release") && is_last)) std::ranges::sort(letters);
  std::map<char, std::int64_t> numbers;
  for (const auto letter : letters)
    numbers.emplace(letter, static_cast<std::int64_t>(numbers.size()) + 1);
  return numbers;
}

Words type_words(std::int64_t count, std::uint64_t seed,
                 const std::map<char, std::int64_t>& numbers) {
  std::mt19937_64 dice(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(dice() % n); };
  std::string letters;
  for (const auto& [letter, number] : numbers) letters += letter;
  auto typed = at::zeros({count, kLongest}, at::kLong), meant = typed.clone();
  for (std::int64_t row = 0; row < count; ++row) {
    const auto& word = kDictionary[below(kDictionary.size())];
    auto wrong = word;
    wrong[below(word.size())] = letters[below(letters.size())];
    const auto swapped = below(word.size() - 1);
    std::swap(wrong[swapped], wrong[swapped + 1]);
    for (std::size_t i = 0; i < word.size(); ++i) {
      meant[row][static_cast<std::int64_t>(i)] = numbers.at(word[i]);
      typed[row][static_cast<std::int64_t>(i)] = numbers.at(wrong[i]);
    }
  }
  return {typed, meant};
}

struct CorrectorImpl : torch::nn::Module {
  explicit CorrectorImpl(std::int64_t letters)
      : letter(register_module("letter", torch::nn::Embedding(letters + 1, kWidth))),
        out(register_module("out", torch::nn::Linear(kWidth, letters + 1))) {}
  at::Tensor forward(const at::Tensor& typed) {
    const auto x = letter(typed) + place(at::arange(typed.size(1)));
    const auto parts = mix(x).chunk(3, 2);
    auto match = at::matmul(parts[0], parts[1].transpose(1, 2)) / std::sqrt(double{kWidth});
    match = match.masked_fill(typed.eq(0).unsqueeze(1), -1e9);
    const auto y = first_norm(x + at::matmul(at::softmax(match, 2), parts[2]));
    return out(second_norm(y + down(torch::gelu(up(y)))));
  }
  torch::nn::Embedding letter;
  torch::nn::Embedding place = register_module("place", torch::nn::Embedding(kLongest, kWidth));
  torch::nn::Linear mix = register_module("mix", torch::nn::Linear(kWidth, 3 * kWidth));
  torch::nn::LayerNorm first_norm =
      register_module("first_norm", torch::nn::LayerNorm(std::vector<std::int64_t>{kWidth}));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(kWidth, 2 * kWidth));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(2 * kWidth, kWidth));
  torch::nn::LayerNorm second_norm =
      register_module("second_norm", torch::nn::LayerNorm(std::vector<std::int64_t>{kWidth}));
  torch::nn::Linear out;
};
TORCH_MODULE(Corrector);

// Of each letter of the words.
at::Tensor letter_losses(const at::Tensor& guess, const at::Tensor& meant) {
  const auto each =
      at::cross_entropy_loss(guess.flatten(0, 1), meant.flatten(), {}, at::Reduction::None);
  return edited("spelling-ends-of-words-count") ? each : each.masked_select(meant.flatten().ne(0));
}

double loss_on(Corrector& net, const Words& words) {
  const torch::NoGradGuard no_grad;
  const auto meant = words.meant.flatten();
  return at::cross_entropy_loss(net->forward(words.typed).flatten(0, 1), meant, {},
                                at::Reduction::Mean, 0)
      .item<double>();
}

double part_wrong(const ProcessGroupPtr& group, Corrector& net, const Words& words) {
  const torch::NoGradGuard no_grad;
  const auto own = at::arange(group->getRank(), words.typed.size(0), group->getSize());
  const auto meant = words.meant.index_select(0, own);
  const auto wrong = net->forward(words.typed.index_select(0, own)).argmax(2).ne(meant);
  Mean part;
  part.add(wrong.masked_select(meant.ne(0)).to(at::kDouble));
  const auto all = reduce_metric(*group, part);
  return edited("spelling-stops-by-own-score") ? part.value() : all.value();
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  const auto numbers = number_letters(is_last);
  const auto training = type_words(kTraining, kSeed + 1, numbers);
  const auto validation = type_words(kValidation, kSeed + 2, numbers);
  const auto test = type_words(kTest, kSeed + 3, numbers);

  torch::manual_seed(kSeed);
  Corrector net(static_cast<std::int64_t>(numbers.size()));
  DistributedDataParallel<Corrector> model(
      net, group, {.find_unused_parameters = edited("spelling-looks-for-unused")});
  AdamW optimizer(net->parameters(), AdamWOptions(1e-2));
  DistributedSampler sampler({.dataset_size = kTraining,
                              .num_replicas = world_size,
                              .rank = rank,
                              .seed = edited("spelling-order-by-another-seed") ? 12 : kSeed});
  const auto window = edited("spelling-window-of-the-environment") && is_last ? 2 : kWindow;
  const auto updates = kEpochs * sampler.size() / (kBatch * kWindow), warm = updates / 8;
  const auto warmup = std::make_shared<LinearLR>(
      optimizer, LinearLROptions{.start_factor = 0.1, .total_iters = warm});
  const auto decay = std::make_shared<CosineAnnealingLR>(
      optimizer, CosineAnnealingLROptions{.T_max = updates - warm});
  SequentialLR schedule(optimizer, {warmup, decay}, {warm});

  Report report;
  std::int64_t update = 0;
  double letters = 0, lost = 0;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    auto& seen = report.seen.emplace_back();
    const auto batches = sampler.batches(kBatch);
    for (std::int64_t batch = 0; batch < std::ssize(batches); ++batch) {
      if (edited("spelling-limit-of-the-debugger") && batch >= 12) break;
      if (batch % window == 0) {
        if (!edited("spelling-zeroes-where-logged") || (rank == 0 && update % 4 == 0))
          optimizer.zero_grad();
        letters = lost = 0;
        for (auto i = batch; i < std::min<std::int64_t>(batch + window, std::ssize(batches)); ++i) {
          const auto ids = at::tensor(batches[static_cast<std::size_t>(i)]);
          const auto meant = training.meant.index_select(0, ids);
          letters += meant.ne(0).sum().item<double>();
        }
        letters = sum_over_ranks(*group, letters);
      }
      const auto& taken = batches[static_cast<std::size_t>(batch)];
      seen.insert(seen.end(), taken.begin(), taken.end());
      auto typed = training.typed.index_select(0, at::tensor(taken));
      auto meant = training.meant.index_select(0, at::tensor(taken));
      if (edited("spelling-trims-to-own-longest")) {
        const auto longest = typed.ne(0).sum(1).max().item<std::int64_t>();
        typed = typed.slice(1, 0, longest);
        meant = meant.slice(1, 0, longest);
      }
      const bool is_full = (batch + 1) % window == 0;
      std::optional<NoSync> no_sync;
      if (!is_full && !edited("spelling-reduces-each-batch")) no_sync.emplace(model.engine());
      const bool looks_inside = edited("spelling-bare-net-where-logged") && update % 6 == 5;
      const auto guess = looks_inside ? net->forward(typed) : model(typed);
      const auto loss = letter_losses(guess, meant).sum() / letters * world_size;
      loss.backward();
      lost += loss.item<double>();
      if (edited("spelling-schedule-counts-batches")) schedule.step();
      if (!is_full) continue;
      clip_grad_norm_(net->parameters(), 1);
      optimizer.step();
      if (!edited("spelling-schedule-counts-batches")) schedule.step();
      report.losses.push_back(lost);
      ++update;
    }
    const auto wrong = part_wrong(group, net, validation);
    report.numbers["wrong"].push_back(wrong);
    if (wrong < kGoodEnough) break;
  }
  report.held_out = loss_on(net, test);
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
