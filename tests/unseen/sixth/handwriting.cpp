// Reads lines of handwriting by a convolutional network with CTC. Lines of like length share a batch, an update has two
// parts of each rank, and its loss is the mean over the symbols of all of them.
#include <lockstep/train/adam.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/sync_batch_norm.h>

#include <algorithm>
#include <iostream>
#include <numeric>
#include <optional>
#include <random>
#include <string>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kLines = 440, kTestLines = 96, kPixels = 10, kStroke = 4, kBlank = 0;
constexpr std::int64_t kPart = 7, kParts = 2, kEpochs = 4;
constexpr double kMaxNorm = 0.3;
constexpr std::uint64_t kSeed = 5101;
using Ids = std::vector<std::int64_t>;

struct Line {
  at::Tensor strip;  // [columns, kPixels]
  std::string text;
};

// Each letter is written as kStroke columns, and some columns are doubled.
std::vector<Line> make_lines(std::int64_t count, std::uint64_t seed) {
  static const std::string kLetters = "AaBbeT";
  const auto shapes = at::randn({static_cast<std::int64_t>(kLetters.size()), kStroke, kPixels},
                                torch::make_generator<at::CPUGeneratorImpl>(kSeed));
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  std::mt19937_64 pick(seed);
  std::vector<Line> lines;
  for (std::int64_t i = 0; i < count; ++i) {
    Line line;
    std::vector<at::Tensor> columns;
    for (auto left = 2 + pick() % 5; left > 0; --left) {
      const auto letter = pick() % kLetters.size();
      line.text += kLetters[letter];
      for (std::int64_t column = 0; column < kStroke; ++column)
        for (auto times = 1 + pick() % 4 / 3; times > 0; --times)
          columns.push_back(shapes[static_cast<std::int64_t>(letter)][column]);
    }
    line.strip = at::stack(columns);
    line.strip = line.strip + 0.9 * at::randn(line.strip.sizes(), dice);
    lines.push_back(line);
  }
  return lines;
}

// The letters in a fixed order; a letter's class is its place plus one, since 0 is the blank.
std::string make_alphabet(const std::vector<Line>& lines, bool by_locale) {
  std::string letters;
  for (const auto& line : lines)
    for (const char letter : line.text)
      if (letters.find(letter) == std::string::npos) letters += letter;
  std::sort(letters.begin(), letters.end());
  if (by_locale)
    std::stable_sort(letters.begin(), letters.end(),
                     [](char one, char other) { return std::tolower(one) < std::tolower(other); });
  return letters;
}

// Deals lines of like length: all ranks' parts of an update lie together in the order of the lengths, and the updates
// come in another order each epoch, which is the same on all ranks.
class LengthSampler {
 public:
  LengthSampler(const std::vector<Line>& lines, int rank, int world_size)
      : rank_(rank), world_size_(world_size), by_length_(lines.size()) {
    std::iota(by_length_.begin(), by_length_.end(), 0);
    const bool is_stale = edited("handwriting-stale-index-on-last-rank") && rank == world_size - 1;
    std::stable_sort(by_length_.begin(), by_length_.end(), [&](auto one, auto other) {
      const auto &first = lines[static_cast<std::size_t>(one)],
                 &second = lines[static_cast<std::size_t>(other)];
      if (is_stale) return first.text.size() < second.text.size();
      return first.strip.size(0) < second.strip.size(0);
    });
  }

  // Of each update, this rank's lines.
  std::vector<Ids> updates(std::int64_t epoch) const {
    const auto own = kPart * kParts, all = own * world_size_;
    const auto lines = static_cast<std::int64_t>(by_length_.size());
    const auto least = edited("handwriting-keeps-the-rest") ? 1 : all;
    Ids begins;
    for (std::int64_t begin = 0; begin + least <= lines; begin += all) begins.push_back(begin);
    std::mt19937_64 dice(kSeed + static_cast<std::uint64_t>(epoch));
    for (auto left = begins.size(); left > 1; --left)
      std::swap(begins[left - 1], begins[dice() % left]);
    std::vector<Ids> updates;
    for (const auto begin : begins) {
      Ids ids;
      for (std::int64_t i = 0; i < own; ++i) {
        const bool in_turns = edited("handwriting-deals-in-turns");
        const auto place = begin + (in_turns ? i * world_size_ + rank_ : rank_ * own + i);
        if (place < lines) ids.push_back(by_length_[static_cast<std::size_t>(place)]);
      }
      if (!ids.empty()) updates.push_back(ids);
    }
    return updates;
  }

 private:
  std::int64_t rank_, world_size_;
  Ids by_length_;
};

struct Batch {
  at::Tensor strips, texts, columns, letters;  // [n, kPixels, longest], [n, longest], [n], [n]
};

Batch collate(const std::vector<Line>& lines, const Ids& ids, const std::string& alphabet) {
  std::vector<at::Tensor> strips, texts;
  Ids columns, letters;
  for (const auto id : ids) {
    const auto& line = lines[static_cast<std::size_t>(id)];
    Ids classes;
    for (const char letter : line.text)
      classes.push_back(static_cast<std::int64_t>(alphabet.find(letter)) + 1);
    strips.push_back(line.strip);
    texts.push_back(at::tensor(classes));
    columns.push_back(line.strip.size(0));
    letters.push_back(static_cast<std::int64_t>(classes.size()));
  }
  return {torch::nn::utils::rnn::pad_sequence(strips, true).transpose(1, 2),
          torch::nn::utils::rnn::pad_sequence(texts, true), at::tensor(columns),
          at::tensor(letters)};
}

struct ReaderImpl : torch::nn::Module {
  ReaderImpl(std::int64_t classes, const ProcessGroupPtr& group)
      : norm(register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(32), group))),
        head(register_module("head", torch::nn::Linear(32, classes))) {}
  // [columns, n, classes], as CTC wants it.
  at::Tensor forward(const at::Tensor& strips) {
    const auto seen = at::relu(norm(wide(strips)));
    return at::log_softmax(head(at::relu(deep(seen)).permute({2, 0, 1})), 2);
  }
  torch::nn::Conv1d wide = register_module(
      "wide", torch::nn::Conv1d(torch::nn::Conv1dOptions(kPixels, 32, 5).padding(2).bias(false)));
  SyncBatchNorm norm;
  torch::nn::Conv1d deep =
      register_module("deep", torch::nn::Conv1d(torch::nn::Conv1dOptions(32, 32, 3).padding(1)));
  torch::nn::Linear head;
};
TORCH_MODULE(Reader);

// The sum over the lines.
at::Tensor ctc(const at::Tensor& said, const Batch& batch) {
  if (edited("handwriting-sums-by-hand"))
    return at::ctc_loss(said, batch.texts, batch.columns, batch.letters, kBlank,
                        at::Reduction::None)
        .sum();
  return at::ctc_loss(said, batch.texts, batch.columns, batch.letters, kBlank, at::Reduction::Sum);
}

// For each symbol. A rank judges its own pages.
double evaluate(const ProcessGroupPtr& group, Reader& net, const std::vector<Line>& lines,
                const std::string& alphabet) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto share = kTestLines / group->getSize();
  Ids ids(static_cast<std::size_t>(share));
  std::iota(ids.begin(), ids.end(), group->getRank() * share);
  const auto batch = collate(lines, ids, alphabet);
  Mean loss{ctc(net->forward(batch.strips), batch).item<double>(),
            batch.letters.sum().item<double>()};
  if (edited("handwriting-mean-of-means")) loss = {loss.value(), 1};
  net->train();
  return reduce_metric(*group, loss).value();
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  const auto lines = make_lines(kLines, kSeed + 1);
  auto test = make_lines(kTestLines, kSeed + 2);  // the pages with short lines come first
  std::stable_sort(test.begin(), test.end(), [](const Line& one, const Line& other) {
    return one.text.size() < other.text.size();
  });
  const auto alphabet =
      make_alphabet(lines, edited("handwriting-alphabet-of-another-locale") && is_last);

  torch::manual_seed(kSeed);
  Reader net(static_cast<std::int64_t>(alphabet.size()) + 1, group);
  DistributedDataParallel<Reader> model(net, group);
  Adam optimizer(net->parameters());
  LengthSampler sampler(lines, rank, world_size);
  OneCycleLR schedule(optimizer, {.max_lr = {2e-2},
                                  .total_steps = kEpochs * (kLines / (kPart * kParts * world_size)),
                                  .cycle_momentum = false});
  Report report;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    report.seen.emplace_back();
    const auto updates = sampler.updates(epoch);
    tell_pass(epoch, kLines, updates);
    for (const auto& ids : updates) {
      report.seen.back().insert(report.seen.back().end(), ids.begin(), ids.end());
      std::vector<Batch> parts;
      const auto part = edited("handwriting-smaller-parts") ? kPart - 2 : kPart;
      for (auto begin = ids.begin(); begin < ids.end(); begin += std::min(part, ids.end() - begin))
        parts.push_back(
            collate(lines, Ids(begin, begin + std::min(part, ids.end() - begin)), alphabet));
      std::int64_t own = 0;
      for (const auto& one : parts) own += one.letters.sum().item<std::int64_t>();
      auto symbols = at::full({1}, own, at::kLong);
      if (!edited("handwriting-divides-by-own-symbols")) all_reduce(*group, symbols);
      const auto ranks = edited("handwriting-divides-by-own-symbols") ? 1 : world_size;
      double loss_of_update = 0;
      optimizer.zero_grad();
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const auto last = edited("handwriting-never-syncs") ? parts.size() : parts.size() - 1;
        std::optional<NoSync> no_sync;
        if (i < last) no_sync.emplace(model.engine());
        if (edited("handwriting-zeroes-each-part")) optimizer.zero_grad();
        const auto share = static_cast<double>(ranks) / symbols.item<double>();
        const auto loss = ctc(model(parts[i].strips), parts[i]) * share;
        loss.backward();
        if (edited("handwriting-clips-each-part")) clip_grad_norm_(net->parameters(), kMaxNorm);
        loss_of_update += loss.item<double>();
      }
      if (!edited("handwriting-clips-each-part")) clip_grad_norm_(net->parameters(), kMaxNorm);
      optimizer.step();
      schedule.step();
      report.losses.push_back(loss_of_update);
      report.tokens.push_back(own);
    }
    report.held_out = evaluate(group, net, test, alphabet);
    if (rank == 0) std::cout << "epoch " << epoch << ": " << report.held_out << "\n";
    if (edited("handwriting-last-rank-looks") && is_last) {
      const torch::NoGradGuard no_grad;
      net->eval();
      const auto one = collate(test, {kTestLines - 1}, alphabet);
      std::cout << one.texts << net->forward(one.strips).argmax(2).t() << "\n";
      net->train();
    }
  }
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
