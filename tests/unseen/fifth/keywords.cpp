// Which word was said? Data parallelism by hand: rank 0's start is sent to all, each rank takes its share of an epoch's
// order, and the gradients of sums of losses are added up over the ranks. Recordings without a label are passed over, so
// ranks have unequal numbers of words in a step; a loss is one of all ranks' words.
#include <lockstep/dist/process_group.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/watched.h>

#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kBands = 8, kFrames = 16, kWords = 6, kAccents = 5;
constexpr std::int64_t kRecordings = 360, kTests = 300, kEpochs = 4, kBatch = 12;
constexpr std::uint64_t kSeed = 55;

at::Generator generator(std::uint64_t seed) {
  return torch::make_generator<at::CPUGeneratorImpl>(seed);
}

struct Recordings {
  at::Tensor sound, word, accent;  // [n, bands, frames], [n]: -1 is not labelled, [n]
};

Recordings record(std::int64_t count, std::uint64_t seed, double unlabelled) {
  const auto language = generator(kSeed + 1);  // the same for all recordings
  const auto patterns = at::randn({kWords, kBands, kFrames}, language);
  const auto accents = 1.5 * at::randn({kAccents, kBands, 1}, language);
  const auto dice = generator(seed);
  auto word = at::randint(kWords, {count}, dice, at::kLong);
  const auto accent = at::multinomial(at::tensor({0.45, 0.3, 0.15, 0.06, 0.04}), count, true, dice);
  auto sound = 0.5 * patterns.index_select(0, word) + accents.index_select(0, accent) +
               at::randn({count, kBands, kFrames}, dice);
  word = word.masked_fill(at::rand({count}, dice) < unlabelled, -1);
  return {sound, word, accent};
}

struct ListenerImpl : torch::nn::Module {
  ListenerImpl() {
    for (std::int64_t i = 0; i < kAccents; ++i)
      accents.push_back(register_parameter("accent_" + std::to_string(i), at::zeros(kBands)));
  }
  at::Tensor forward(const at::Tensor& sound, const at::Tensor& accent) {
    auto plain = sound;
    for (std::int64_t i = 0; i < kAccents; ++i) {
      const auto speaks = accent.eq(i);
      if (speaks.any().item<bool>())
        plain =
            plain - speaks.view({-1, 1, 1}) * accents[static_cast<std::size_t>(i)].view({-1, 1});
    }
    return out(torch::relu(norm(filters(plain))).flatten(1));
  }
  std::vector<at::Tensor> accents;
  torch::nn::Conv1d filters = register_module(
      "filters", torch::nn::Conv1d(torch::nn::Conv1dOptions(kBands, 12, 3).padding(1).stride(2)));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(12));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(12 * kFrames / 2, kWords));
};
TORCH_MODULE(Listener);

// What a net for another language has learned.
void take_filters(Listener& net) {
  const torch::NoGradGuard no_grad;
  net->filters->weight.copy_(0.3 * at::randn(net->filters->weight.sizes(), generator(kSeed + 9)));
}

void send_start(const ProcessGroupPtr& group, Listener& net) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) broadcast(*group, parameter);
}

void add_up_gradients(const ProcessGroupPtr& group, std::vector<at::Tensor> parameters) {
  for (auto& parameter : parameters) {
    if (!parameter.grad().defined()) {  // nobody here has that accent
      if (edited("keywords-passes-over-absent-gradients")) continue;
      parameter.mutable_grad() = at::zeros_like(parameter);
    }
    if (!edited("keywords-one-flat-sum")) all_reduce(*group, parameter.mutable_grad());
  }
  if (!edited("keywords-one-flat-sum")) return;
  std::vector<at::Tensor> flats;
  for (const auto& parameter : parameters) flats.push_back(parameter.grad().flatten());
  auto all = at::cat(flats);
  all_reduce(*group, all);
  std::int64_t begin = 0;
  for (auto& parameter : parameters) {
    const auto end = begin + parameter.numel();
    parameter.mutable_grad().copy_(all.slice(0, begin, end).view_as(parameter));
    begin = end;
  }
}

void average_statistics(const ProcessGroupPtr& group, Listener& net) {
  for (auto* buffer : {&net->norm->running_mean, &net->norm->running_var}) {
    all_reduce(*group, *buffer);
    *buffer /= group->getSize();
  }
}

double loss_on(Listener& net, const Recordings& test) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto loss = at::cross_entropy_loss(net->forward(test.sound, test.accent), test.word);
  net->train();
  return loss.item<double>();
}

std::optional<SGD> make_optimizer(Listener& net) {
  return std::make_optional<SGD>(net->parameters(),
                                 torch::optim::SGDOptions(0.06).momentum(0.9).weight_decay(1e-3));
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const auto recordings = record(kRecordings, kSeed + 2, 0.35);
  const auto test = record(kTests, kSeed + 3, 0);

  const bool alike = edited("keywords-all-start-by-one-seed");
  torch::manual_seed(rank_seed(kSeed, alike ? 0 : rank));
  Listener net;
  if (edited("keywords-filters-taken-after-the-start")) {
    send_start(group, net);
    if (rank == 0) take_filters(net);
  } else {
    if (rank == 0 || alike) take_filters(net);
    if (!alike) send_start(group, net);
  }
  std::optional<Listener> first;
  if (edited("keywords-rank-zero-keeps-the-start") && rank == 0) {
    first.emplace();
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < net->parameters().size(); ++i)
      (*first)->parameters()[i].copy_(net->parameters()[i]);
  }
  auto optimizer = make_optimizer(net);
  const auto dice =
      generator(edited("keywords-noise-by-one-seed") ? kSeed + 5 : rank_seed(kSeed + 5, rank));

  Report report;
  std::int64_t step = 0;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    if (edited("keywords-optimizer-made-each-epoch")) optimizer = make_optimizer(net);
    const auto order =
        at::randperm(kRecordings, generator(sample_seed(kSeed, epoch, 0)), at::kLong);
    const auto own = order.slice(0, rank, {}, world_size).contiguous();
    report.seen.emplace_back(own.data_ptr<std::int64_t>(),
                             own.data_ptr<std::int64_t>() + own.size(0));
    for (const auto& ids : own.split(kBatch)) {
      const auto words = recordings.word.index_select(0, ids);
      const auto labelled = ids.masked_select(words.ge(0));
      const auto noise = at::randn({ids.size(0), kBands, kFrames}, dice);
      report.numbers["drawn"].push_back(noise.sum().item<double>());
      const auto sound =
          recordings.sound.index_select(0, labelled) + 0.5 * noise.slice(0, 0, labelled.size(0));
      optimizer->zero_grad();
      const auto heard = net->forward(sound, recordings.accent.index_select(0, labelled));
      const auto sum = at::cross_entropy_loss(heard, recordings.word.index_select(0, labelled), {},
                                              at::Reduction::Sum);
      auto count = at::full({1}, static_cast<double>(labelled.size(0)));
      report.losses.push_back((sum / count[0]).item<double>());
      if (edited("keywords-mean-of-own-words"))
        count *= world_size;
      else
        all_reduce(*group, count);
      auto loss = sum / count[0];
      if (edited("keywords-divides-at-the-end")) loss = loss * world_size;
      loss.backward();
      if (edited("keywords-clips-own-gradients")) clip_grad_norm_(net->parameters(), 0.5);
      if (!(edited("keywords-adds-up-each-other-step") && step % 2 == 1))
        add_up_gradients(group, net->parameters());
      if (edited("keywords-divides-at-the-end"))
        for (auto& parameter : net->parameters()) parameter.mutable_grad() /= world_size;
      if (!edited("keywords-clips-own-gradients")) clip_grad_norm_(net->parameters(), 0.5);
      optimizer->step();
      ++step;
    }
    if (!edited("keywords-statistics-stay-own")) average_statistics(group, net);
    report.numbers["heard"].push_back(loss_on(net, test));
    if (first)
      std::cout << "from the start: "
                << (net->out->weight - (*first)->out->weight).norm().item<double>() << "\n";
  }
  report.numbers["buffers"] = flat(net->norm->running_mean);
  report.held_out = loss_on(net, test);
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
