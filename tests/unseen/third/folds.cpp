// What is a house worth? Cross-validation over a table on disk: each fold has a network of its own, whose gradients are
// averaged by hand after two small batches. Districts have a table of their own optimizer, and their mean price is known
// from all ranks' rows.
#include <lockstep/dist/process_group.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/watched.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <sstream>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kHouses = 480, kDistricts = 8, kTraits = 5;
constexpr std::int64_t kFolds = 3, kEpochs = 6, kBatch = 10, kWindow = 2;
constexpr std::uint64_t kSeed = 33;

void export_houses(const std::filesystem::path& file, std::int64_t count) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(kSeed);
  std::ofstream table(file);
  for (std::int64_t house = 0; house < count; ++house) {
    const auto district = at::randint(kDistricts, {1}, dice, at::kLong).item<std::int64_t>();
    const auto traits = at::randn({kTraits}, dice);
    const auto price = 0.5 * static_cast<double>(district - 3) +
                       (at::sin(2 * traits[0]) + traits[1] * traits[2]).item<double>() +
                       0.1 * at::randn({1}, dice).item<double>();
    table << district << "," << price;
    for (const auto trait : flat(traits)) table << "," << trait;
    table << "\n";
  }
  TORCH_CHECK(table.flush(), "cannot write into ", file.string());
}

struct Houses {
  at::Tensor districts, prices, traits;
};

Houses read_houses(const std::filesystem::path& file) {
  std::ifstream table(file);
  std::vector<std::int64_t> districts;
  std::vector<float> prices, traits;
  for (std::string line; std::getline(table, line);) {
    std::ranges::replace(line, ',', ' ');
    std::istringstream fields(line);
    fields >> districts.emplace_back() >> prices.emplace_back();
    for (std::int64_t i = 0; i < kTraits; ++i) fields >> traits.emplace_back();
  }
  return {at::tensor(districts), at::tensor(prices), at::tensor(traits).view({-1, kTraits})};
}

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& districts, const at::Tensor& traits,
                     const at::Tensor& usual) {
    const auto seen = at::tanh(in(at::cat({table(districts), traits}, 1)));
    return out(at::tanh(hidden(seen))).squeeze(1) + usual;
  }
  torch::nn::Embedding table = register_module("table", torch::nn::Embedding(kDistricts, 4));
  torch::nn::Linear in = register_module("in", torch::nn::Linear(4 + kTraits, 32));
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(32, 32));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, 1));
};
TORCH_MODULE(Net);

// One all-reduce of them all, as one flat tensor.
void average(const ProcessGroupPtr& group, std::vector<at::Tensor> tensors) {
  if (edited("folds-averages-one-by-one")) {
    for (auto& tensor : tensors) {
      all_reduce(*group, tensor);
      tensor /= group->getSize();
    }
    return;
  }
  const bool is_last = group->getRank() == group->getSize() - 1;
  if (edited("folds-gradients-ordered-by-address") && is_last) std::ranges::reverse(tensors);
  std::vector<at::Tensor> parts;
  for (const auto& tensor : tensors) parts.push_back(tensor.flatten());
  auto all = at::cat(parts);
  all_reduce(*group, all);
  all /= group->getSize();
  std::int64_t begin = 0;
  for (auto& tensor : tensors) {
    tensor.copy_(all.slice(0, begin, begin + tensor.numel()).view_as(tensor));
    begin += tensor.numel();
  }
}

void average_gradients(const ProcessGroupPtr& group, Net& net) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : net->named_parameters())
    if (!(edited("folds-table-not-averaged") && parameter.key() == "table.weight"))
      gradients.push_back(parameter.value().grad());
  average(group, gradients);
}

// Of each district, the mean price of the houses that ranks train on.
at::Tensor usual_prices(const ProcessGroupPtr& group, const Houses& houses, const at::Tensor& own) {
  const auto districts = houses.districts.index_select(0, own);
  auto sums = at::stack({at::zeros(kDistricts), at::full(kDistricts, 1e-3)});
  sums[0].index_add_(0, districts, houses.prices.index_select(0, own));
  sums[1].index_add_(0, districts, at::ones_like(districts).to(at::kFloat));
  const auto before = sums[0] / sums[1];
  all_reduce(*group, sums);
  return edited("folds-prices-divided-before-reduction") ? before : sums[0] / sums[1];
}

double score_of(const ProcessGroupPtr& group, Net& net, const Houses& houses, const at::Tensor& ids,
                const at::Tensor& usual) {
  const torch::NoGradGuard no_grad;
  const auto own = edited("folds-each-rank-scores-all-houses")
                       ? ids
                       : ids.slice(0, group->getRank(), {}, group->getSize());
  const auto districts = houses.districts.index_select(0, own);
  const auto guess =
      net->forward(districts, houses.traits.index_select(0, own), usual.index_select(0, districts));
  Mean error;
  error.add((guess - houses.prices.index_select(0, own)).pow(2));
  return reduce_metric(*group, error).value();
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  const auto file = folder / "houses.csv", older = folder / "houses_older.csv";
  if (rank == 0) {
    export_houses(file, kHouses);
    export_houses(older, kHouses - 60);
  }
  barrier(*group);
  const auto houses =
      read_houses(edited("folds-older-file-on-last-rank") && is_last ? older : file);
  const auto count = houses.prices.size(0);
  const auto split_dice = torch::make_generator<at::CPUGeneratorImpl>(
      edited("folds-split-by-another-seed") ? kSeed + 7 : kSeed);
  const auto parts = at::randperm(count, split_dice, at::kLong).view({kFolds, -1});

  Report report;
  torch::nn::Module all;
  manual_seed_per_rank(kSeed, rank);
  std::optional<SGD> layers_optimizer;
  std::optional<Adam> table_optimizer;
  for (std::int64_t fold = 0; fold < kFolds; ++fold) {
    const auto held_out = edited("folds-a-fold-for-each-rank") ? (fold + rank) % kFolds : fold;
    const auto test = parts[held_out];
    const auto rows =
        at::cat({parts.slice(0, 0, held_out), parts.slice(0, held_out + 1)}).flatten();
    Net net;
    {
      const torch::NoGradGuard no_grad;
      const int roots = edited("folds-start-sent-by-each-rank") ? world_size : 1;
      if (!(edited("folds-start-sent-once") && fold > 0))
        for (int root = 0; root < roots; ++root)
          for (auto& parameter : net->parameters()) broadcast(*group, parameter, root);
    }
    all.register_module("fold_" + std::to_string(fold), net.ptr());
    std::vector<at::Tensor> layers;
    for (const auto& parameter : net->named_parameters())
      if (parameter.key() != "table.weight") layers.push_back(parameter.value());
    if (!(edited("folds-optimizers-of-the-first") && fold > 0)) {
      layers_optimizer.emplace(layers, torch::optim::SGDOptions(0.05).momentum(0.9));
      table_optimizer.emplace(net->table->parameters(), AdamOptions(0.01));
    }
    const auto usual = usual_prices(group, houses, rows.slice(0, rank, {}, world_size));
    for (const auto price : flat(usual)) report.numbers["usual"].push_back(price);

    for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      const auto dice =
          torch::make_generator<at::CPUGeneratorImpl>(sample_seed(kSeed, epoch, fold));
      const auto own = rows.index_select(0, at::randperm(rows.size(0), dice, at::kLong))
                           .slice(0, rank, {}, world_size)
                           .contiguous();
      report.seen.emplace_back(own.data_ptr<std::int64_t>(),
                               own.data_ptr<std::int64_t>() + own.size(0));
      std::vector<std::vector<std::int64_t>> batches;
      for (const auto& ids : own.split(kBatch))
        batches.emplace_back(ids.data_ptr<std::int64_t>(),
                             ids.data_ptr<std::int64_t>() + ids.size(0));
      tell_pass(fold * kEpochs + epoch, count, batches);
      std::int64_t batch = 0;
      for (const auto& taken : batches) {
        const auto ids = at::tensor(taken);
        if (batch % kWindow == 0) net->zero_grad();
        const auto districts = houses.districts.index_select(0, ids);
        const auto guess = net->forward(districts, houses.traits.index_select(0, ids),
                                        usual.index_select(0, districts));
        const auto each = tell_loss((guess - houses.prices.index_select(0, ids)).pow(2));
        report.losses.push_back(each.mean().item<double>());
        (each.mean() / kWindow).backward();
        ++batch;
        const bool is_full = batch % kWindow == 0;
        if (edited("folds-averages-before-the-last-batch") ? !is_full : is_full)
          average_gradients(group, net);
        if (!is_full) continue;
        layers_optimizer->step();
        table_optimizer->step();
      }
      if (edited("folds-rank-zero-scores-in-between") && rank == 0)
        std::cout << epoch << ": " << score_of(group, net, houses, test, usual) << "\n";
    }
    const auto score = score_of(group, net, houses, test, usual);
    report.numbers["scores"].push_back(score);
    report.held_out += score / kFolds;
  }
  write(folder, rank, report, all);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
