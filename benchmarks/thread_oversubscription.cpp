// What it costs that every rank computes with a thread for each processor: a step of DDP on one rank for each
// processor and on two, with processors / ranks threads and with all, side by side in one run.
//
//   thread_oversubscription [FILE] [--rounds N]
//                           default: the checkout's reports/out/thread_oversubscription.json, 16
//
// The ranks change their number of threads between blocks of steps, in an order that alternates. Each round
// gives one ratio; the file has their median and its distribution-free 95 % interval.
#include <lockstep/base/clock.h>
#include <lockstep/base/processors.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>

#include <array>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "interval.h"
#include "ranks.h"
#include "rounds.h"

namespace {

using namespace lockstep;
using namespace lockstep::benchmark;
using nlohmann::json;

constexpr int kSteps = 8;  // of a block
constexpr std::int64_t kBatch = 64;
using Times = std::array<std::vector<double>, 2>;  // [shared, all][round], milliseconds a step

int processors() {
  return std::max(2, static_cast<int>(processors_of_this_process().size()));
}

void run_rank(const launch::Placement& place, const std::filesystem::path& folder, int rounds) {
  auto group = init_process_group();
  torch::manual_seed(1);
  Mlp net(784, 512, 10);
  DistributedDataParallel<Mlp> model(net, group);
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  const auto inputs = torch::randn({kBatch, 784});
  const auto targets = torch::randint(10, {kBatch});
  const std::array<int, 2> threads = {std::max(1, processors() / place.world_size), processors()};
  const auto milliseconds_a_step = [&](int with) {
    at::set_num_threads(with);
    barrier(*group);
    const auto begin = monotonic_ns();
    for (int step = 0; step < kSteps; ++step) {
      net->zero_grad();
      torch::nn::functional::cross_entropy(model(inputs), targets).backward();
      optimizer.step();
    }
    return static_cast<double>(monotonic_ns() - begin) / 1e6 / kSteps;
  };
  for (const int with : threads) milliseconds_a_step(with);  // warms up
  Times times;
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < 2; ++i) {
      const auto which = (i + static_cast<std::size_t>(round)) % 2;
      times[which].push_back(milliseconds_a_step(threads[which]));
    }
  destroy_process_group(group);
  if (place.rank != 0) return;
  const json result = {
      {"threads", threads},
      {"milliseconds",
       {{"shared", median_with_interval(times[0])}, {"all", median_with_interval(times[1])}}},
      {"all_to_shared", ratios(times[1], times[0])}};
  write_file(folder / "result.json", result.dump());
}

json run_world(int world_size, const std::vector<std::string>& command) {
  const TemporaryFolder folder("lockstep-threads");
  run_ranks(command, world_size, folder.path());
  return json::parse(read_file(folder.path() / "result.json"));
}

void run_all(const std::vector<std::string>& command, int rounds,
             const std::filesystem::path& file) {
  json result = {{"benchmark", "thread_oversubscription"},
                 {"job", "MLP 784-512-10, batch 64 a rank, SGD, DDP on Gloo"},
                 {"processors", processors()},
                 {"torch", TORCH_VERSION},
                 {"load_average", {{"before", load_average()}}},
                 {"rounds", rounds},
                 {"steps_a_round", kSteps}};
  for (const int world_size : {processors(), 2 * processors()}) {
    const auto measured = run_world(world_size, command);
    result["ranks"][std::to_string(world_size)] = measured;
    const auto& ratio = measured["all_to_shared"];
    std::ostringstream text;
    text << std::fixed << std::setprecision(2) << "  " << world_size << " ranks with "
         << measured["threads"][1] << " threads each, a step takes "
         << ratio["median"].get<double>() << " [" << ratio["low"].get<double>() << ", "
         << ratio["high"].get<double>() << "] times as long as with " << measured["threads"][0];
    std::cerr << text.str() << "\n";
  }
  result["load_average"]["after"] = load_average();
  write_file(file, result.dump(2) + "\n");
}

}  // namespace

int main(int argc, char** argv) {
  return main_of(
      argc, argv,
      {.file = "thread_oversubscription.json",
       .about = "A thread for each processor in every rank, against the ranks' share of them",
       .each = "rounds of 8 steps with each number of threads"},
      [&](int rounds, const std::string& file) {
        if (const auto rank = as_rank())
          run_rank(rank->place, rank->folder, rounds);
        else
          run_all({argv, argv + argc}, rounds, file);
      });
}
