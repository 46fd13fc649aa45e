// How ripe is the cheese? Recordings come in files of unequal length, and each rank reads its own: one has more batches
// than the other, so an epoch runs inside of join(). SGD with momentum, which follows the rank that was last.
#include <lockstep/checkpoint/joined_optimizer.h>
#include <lockstep/train/agreement.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/join.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/watched.h>

#include <algorithm>
#include <iostream>
#include <numeric>

#include "edited.h"

namespace {

using namespace lockstep;
using unseen::edited;

constexpr std::int64_t kTaps = 14, kStages = 4, kBatch = 10, kEpochs = 3;
// Of each file, how many recordings it has.
const std::vector<std::int64_t> kFiles = {90, 60, 110, 50, 80, 40};

struct Recordings {
  at::Tensor taps, stage;  // [n, kTaps], [n]
  std::vector<std::int64_t> ids;
};

Recordings make_recordings(std::int64_t count, std::uint64_t seed) {
  const auto cellar = torch::make_generator<at::CPUGeneratorImpl>(std::uint64_t{61});
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto sound = at::randn({kStages, kTaps}, cellar);
  const auto stage = at::randint(kStages, {count}, dice, at::kLong);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), static_cast<std::int64_t>(1000 * seed));
  return {sound.index_select(0, stage) + 1.4 * at::randn({count, kTaps}, dice), stage, ids};
}

// Files 0, 2 and 4 on rank 0, the shorter ones on rank 1.
std::vector<std::int64_t> files_of(int rank, int world_size) {
  std::vector<std::int64_t> order(kFiles.size()), mine;
  std::iota(order.begin(), order.end(), 0);
  if (edited("uneven-listing-of-host") && rank == 1) std::reverse(order.begin(), order.end());
  if (edited("uneven-longest-first"))
    std::sort(order.begin(), order.end(), [](std::int64_t one, std::int64_t other) {
      return kFiles[static_cast<std::size_t>(one)] > kFiles[static_cast<std::size_t>(other)];
    });
  const auto first = static_cast<std::size_t>(edited("uneven-files-of-local-rank") ? 0 : rank);
  for (std::size_t i = first; i < order.size(); i += static_cast<std::size_t>(world_size))
    mine.push_back(order[i]);
  if (edited("uneven-file-left-out") && rank == 1) mine.pop_back();
  return mine;
}

Recordings read(const std::vector<std::int64_t>& files) {
  std::vector<at::Tensor> taps, stage;
  Recordings all;
  for (const auto file : files) {
    const auto part = make_recordings(kFiles[static_cast<std::size_t>(file)],
                                      static_cast<std::uint64_t>(100 + file));
    taps.push_back(part.taps);
    stage.push_back(part.stage);
    all.ids.insert(all.ids.end(), part.ids.begin(), part.ids.end());
  }
  all.taps = at::cat(taps);
  all.stage = at::cat(stage);
  return all;
}

struct NetImpl : torch::nn::Module {
  NetImpl()
      : hidden(register_module("hidden", torch::nn::Linear(kTaps, 40))),
        out(register_module("out", torch::nn::Linear(40, kStages))) {}
  at::Tensor forward(const at::Tensor& taps) { return out(at::relu(hidden(taps))); }
  torch::nn::Linear hidden, out;
};
TORCH_MODULE(Net);

void train(const std::filesystem::path& folder) {
  auto group = init_process_group();
  const int rank = group->getRank();
  const auto mine = read(files_of(rank, group->getSize()));
  const auto test = make_recordings(300, 7);
  torch::manual_seed(12);
  Net net;
  DistributedDataParallel<Net> model(net, group);
  auto rates = torch::optim::SGDOptions(edited("uneven-lower-rate") ? 0.04 : 0.05).momentum(0.9);
  const bool remembers = !edited("uneven-no-momentum");
  if (!remembers) rates = torch::optim::SGDOptions(0.3);
  SGD optimizer(net->parameters(), rates);
  StepLR schedule(optimizer,
                  {.step_size = edited("uneven-rate-every-batch") ? 40 : 1, .gamma = 0.6});
  JoinedOptimizer joined(optimizer, group);
  std::vector<std::reference_wrapper<Joinable>> joinables{model.engine(), joined};
  if (edited("uneven-momentum-left") || !remembers) joinables.pop_back();
  JoinOptions options;
  options.divide_by_initial_world_size = !edited("uneven-divided-by-those-left");
  options.enable = !edited("uneven-join-not-enabled");

  unseen::Report report;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto dice = torch::make_generator<at::CPUGeneratorImpl>(
        static_cast<std::uint64_t>(edited("uneven-one-order") ? 100 : 100 + epoch));
    const auto order = at::randperm(mine.stage.size(0), dice);
    auto batches = order.split(edited("uneven-larger-batch") ? 15 : kBatch);
    auto& seen = report.seen.emplace_back();
    if (edited("uneven-as-many-as-fewest")) {
      const auto fewest = all_agree(*group, static_cast<std::int64_t>(batches.size())).least;
      batches.resize(static_cast<std::size_t>(fewest));
    }
    const auto one = [&](const at::Tensor& rows) {
      for (const auto row : unseen::flat(rows))
        seen.push_back(mine.ids[static_cast<std::size_t>(row)]);
      if (!edited("uneven-gradients-kept")) optimizer.zero_grad();
      const auto forward = [&] {
        return cross_entropy(model(mine.taps.index_select(0, rows)),
                             mine.stage.index_select(0, rows))
            .mean();
      };
      const auto loss = forward();
      loss.backward();
      optimizer.step();
      if (edited("uneven-rate-every-batch")) schedule.step();
      report.losses.push_back(loss.item<double>());
      if (seen.size() == 15 * kBatch)
        report.numbers["out"].push_back(net->out->weight.norm().item<double>());
      if (edited("uneven-logs-mean-loss")) {
        auto shown = loss.detach().clone();
        all_reduce(*group, shown);
        if (rank == 0) std::cout << "loss " << shown.item<double>() / group->getSize() << "\n";
      }
    };
    const auto all = [&] { std::for_each(batches.begin(), batches.end(), one); };
    if (edited("uneven-join-forgotten") || edited("uneven-as-many-as-fewest"))
      all();
    else
      join(joinables, all, options);
    if (edited("uneven-counts-batches")) {
      const double count = sum_over_ranks(*group, static_cast<double>(batches.size()));
      if (rank == 0) std::cout << count << " batches\n";
    }
    if (!edited("uneven-rate-every-batch")) schedule.step();
  }
  const torch::NoGradGuard no_grad;
  report.held_out =
      torch::nn::functional::cross_entropy(net->forward(test.taps), test.stage).item<double>();
  unseen::write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return unseen::run(argc, argv, train);
}
