// Which of a search's results is meant? A net scores the results of logged searches, and learns from the clicks; a click
// counts the more the lower on the page it was. Searches come from the parts of a log, which rank 0 exports; the weights
// that validate best are kept.
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>

#include <algorithm>
#include <iostream>
#include <limits>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;
namespace fs = std::filesystem;

constexpr std::int64_t kSearches = 256, kResults = 6, kTraits = 8, kLogParts = 4;
constexpr std::int64_t kEpochs = 8, kBatch = 16, kValidateEvery = 4;
constexpr std::uint64_t kSeed = 2024;

struct Searches {
  at::Tensor ids, traits, chosen;  // [n], [n, results, traits], [n]: the place of the result
  std::int64_t size() const { return ids.size(0); }
};

at::Tensor seen_at_place() {
  return at::pow(at::arange(1, kResults + 1, at::kFloat), -0.9);
}

// With the clicks of people who look at the upper results first, or, unbiased, with what they look for.
Searches make_searches(std::int64_t count, std::uint64_t seed, bool clicks) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto traits = at::randn({count, kResults, kTraits}, dice);
  const auto worth = at::sin(2 * traits.select(2, 0)) + traits.select(2, 1) * traits.select(2, 2) -
                     traits.select(2, 3).abs() + 0.5 * traits.select(2, 4);
  auto wish = 2.5 * worth;
  if (clicks) wish = wish + at::log(seen_at_place());
  const auto luck = -at::log(-at::log(at::rand({count, kResults}, dice).clamp(1e-6, 1 - 1e-6)));
  return {at::arange(count), traits, (wish + luck).argmax(1)};
}

void export_log(const fs::path& folder, const Searches& searches) {
  fs::create_directories(folder);
  for (std::int64_t part = 0; part < kLogParts; ++part) {
    const auto rows = at::arange(part, searches.size(), kLogParts);
    const std::vector<at::Tensor> columns{searches.ids.index_select(0, rows),
                                          searches.traits.index_select(0, rows),
                                          searches.chosen.index_select(0, rows)};
    torch::save(columns, (folder / ("part_" + std::to_string(part) + ".pt")).string());
  }
}

Searches read_log(const fs::path& folder, bool is_last) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::ranges::sort(files);
  // As the other file system lists them.
  if (edited("ranker-parts-as-the-folder-lists-them") && is_last) std::ranges::reverse(files);
  std::vector<at::Tensor> ids, traits, chosen;
  for (const auto& file : files) {
    std::vector<at::Tensor> columns;
    torch::load(columns, file.string());
    ids.push_back(columns[0]);
    traits.push_back(columns[1]);
    chosen.push_back(columns[2]);
  }
  return {at::cat(ids), at::cat(traits), at::cat(chosen)};
}

struct ScorerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& traits) {
    return out(dropout(torch::relu(hidden(torch::relu(in(traits)))))).squeeze(-1);
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(kTraits, 48));
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(48, 32));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.3));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, 1));
};
TORCH_MODULE(Scorer);

at::Tensor surprise(const at::Tensor& scores, const at::Tensor& chosen) {
  return -at::log_softmax(scores, 1).gather(1, chosen.unsqueeze(1)).squeeze(1);
}

double loss_on(Scorer& net, const Searches& searches) {
  const torch::NoGradGuard no_grad;
  const bool was_training = net->is_training();
  net->eval();
  const auto loss = surprise(net->forward(searches.traits), searches.chosen).mean().item<double>();
  net->train(was_training);
  return loss;
}

double validate(const ProcessGroupPtr& group, Scorer& net, const Searches& searches) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto own = at::arange(group->getRank(), searches.size(), group->getSize());
  Mean loss;
  loss.add(surprise(net->forward(searches.traits.index_select(0, own)),
                    searches.chosen.index_select(0, own)));
  const auto value =
      edited("ranker-best-by-own-searches") ? loss.value() : reduce_metric(*group, loss).value();
  if (edited("ranker-rank-zero-returns-early") && group->getRank() == 0) {
    std::cout << "validated: " << value << "\n";
    return value;
  }
  net->train();
  return value;
}

void train(const fs::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  if (rank == 0) {
    export_log(folder / "log", make_searches(kSearches, kSeed + 1, true));
    auto before = make_searches(kSearches, kSeed + 1, true);
    before.chosen = make_searches(kSearches, kSeed + 2, true).chosen;  // of the page's older layout
    export_log(folder / "log_before", before);
  }
  barrier(*group);
  const bool is_stale = edited("ranker-log-from-before-on-last-rank") && is_last;
  const auto log = read_log(folder / (is_stale ? "log_before" : "log"), is_last);
  const auto validation = make_searches(48, kSeed + 3, false);
  const auto test = make_searches(512, kSeed + 4, false);

  torch::manual_seed(kSeed);
  Scorer net;
  DistributedDataParallel<Scorer> model(
      net, group, {.bucket_cap_mb = edited("ranker-small-buckets") ? 0.001 : -1});
  Adam optimizer(net->parameters(), AdamOptions(1.2e-2));
  DistributedSampler sampler({.dataset_size = log.size(),
                              .num_replicas = world_size,
                              .rank = edited("ranker-share-by-local-rank") ? 0 : rank,
                              .seed = edited("ranker-order-by-another-seed") ? 77 : kSeed});
  const auto steps_of_epoch = sampler.size() / kBatch;
  CosineAnnealingLR anneal(optimizer, {.T_max = kEpochs * steps_of_epoch});
  manual_seed_per_rank(kSeed, rank);
  const auto count_of_click = edited("ranker-upper-clicks-count-more")
                                  ? seen_at_place()
                                  : (1 / seen_at_place()).clamp_max(4);
  const auto weights = count_of_click / count_of_click.mean();

  Report report;
  std::int64_t step = 0;
  double best = std::numeric_limits<double>::infinity();
  std::vector<at::Tensor> best_weights;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    if (!edited("ranker-epoch-not-set")) sampler.set_epoch(epoch);
    auto& seen = report.seen.emplace_back();
    for (const auto& batch : sampler.batches(kBatch)) {
      const auto rows = at::tensor(batch);
      const auto ids = log.ids.index_select(0, rows);
      seen.insert(seen.end(), ids.data_ptr<std::int64_t>(),
                  ids.data_ptr<std::int64_t>() + ids.size(0));
      const auto chosen = log.chosen.index_select(0, rows);
      optimizer.zero_grad();
      const auto each = surprise(model(log.traits.index_select(0, rows)), chosen);
      const auto loss = tell_loss(each * weights.index_select(0, chosen)).mean();
      loss.backward();
      optimizer.step();
      if (!edited("ranker-anneals-once-an-epoch")) anneal.step();
      report.losses.push_back(loss.item<double>());
      if (edited("ranker-rank-zero-logs-more") && step % (rank == 0 ? 1 : 8) == 0)
        std::cout << "rank " << rank << ", step " << step << ": " << loss.item<double>() << "\n";
      if (++step % kValidateEvery != 0) continue;
      const auto validated = validate(group, net, validation);
      if (validated >= best) continue;
      best = validated;
      best_weights.clear();
      for (const auto& parameter : net->parameters())
        best_weights.push_back(parameter.detach().clone());
    }
    if (edited("ranker-anneals-once-an-epoch")) anneal.step();
    if (edited("ranker-rank-zero-tests-in-between")) {
      if (rank == 0) std::cout << "epoch " << epoch << ": " << loss_on(net, test) << "\n";
      barrier(*group);
    }
  }
  {
    const torch::NoGradGuard no_grad;
    auto parameters = net->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(best_weights[i]);
  }
  report.numbers["best"] = {best};
  report.held_out = loss_on(net, test);
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
