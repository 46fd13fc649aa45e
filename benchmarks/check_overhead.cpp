// What the checked mode costs: a step of DDP and a small all_reduce on 2 and on 4 processes, plain
// and checked, side by side.
//
//   check_overhead [FILE] [--rounds N]    default: the checkout's reports/out/checked_mode.json, 16
//
// Every process holds both copies of each job and runs them in turn, in an order that alternates:
// what else the machine does meets both. Each round gives one ratio to plain; the file has their
// median and its distribution-free 95 % interval, and a table goes to stderr. A machine that is busy
// with something else widens the intervals: the file says how busy it was.
#include <lockstep/base/clock.h>
#include <lockstep/record/checked_backend.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>

#include <array>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <thread>

#include "interval.h"
#include "ranks.h"
#include "rounds.h"

namespace {

using namespace lockstep;
using namespace lockstep::benchmark;
using nlohmann::json;

constexpr std::array<int, 2> kWorldSizes = {2, 4};
constexpr std::array<const char*, 2> kModes = {"plain", "checked"};
constexpr int kTurns = 8, kSteps = 8, kReductions = 100;
constexpr std::int64_t kBatch = 32;

// One copy of the jobs, plain or checked.
class Job {
 public:
  Job(bool checked, const std::filesystem::path& folder, const launch::Placement& place) {
    const std::string name = checked ? "checked" : "plain";
    InitOptions init;
    init.init_method = "file://" + (folder / name).string();
    if (checked)
      init.decorate = [](BackendPtr backend, const StorePtr& store) {
        return record::check(std::move(backend), store);
      };
    group_ = init_process_group(init);
    torch::manual_seed(1);
    net_ = Mlp(784, 256, 10);
    model_ = std::make_unique<DistributedDataParallel<Mlp>>(net_, group_);
    optimizer_ = std::make_unique<torch::optim::SGD>(net_->parameters(), 0.01);
    torch::manual_seed(static_cast<std::uint64_t>(100 + place.rank));
    inputs_ = torch::randn({kBatch, 784});
    targets_ = torch::randint(10, {kBatch});
  }
  ~Job() { destroy_process_group(group_); }

  // Milliseconds a step.
  double train() {
    return timed(kSteps, [this] {
      net_->zero_grad();
      torch::nn::functional::cross_entropy((*model_)(inputs_), targets_).backward();
      optimizer_->step();
    });
  }
  // Milliseconds an all_reduce of 16 floats.
  double reduce() {
    auto tensor = torch::zeros({16});
    return timed(kReductions, [&] { all_reduce(*group_, tensor); });
  }
  at::Tensor first_parameter() const { return net_->parameters().front(); }

 private:
  // All ranks start together.
  template <class F>
  double timed(int times, F call) {
    barrier(*group_);
    const auto begin = monotonic_ns();
    for (int i = 0; i < times; ++i) call();
    return static_cast<double>(monotonic_ns() - begin) / 1e6 / times;
  }

  ProcessGroupPtr group_;
  Mlp net_{nullptr};
  std::unique_ptr<DistributedDataParallel<Mlp>> model_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  at::Tensor inputs_, targets_;
};

using Times = std::array<std::vector<double>, kModes.size()>;  // [mode][round], milliseconds

struct Measured {
  Times steps, reductions;
};

Measured measure(std::vector<std::unique_ptr<Job>>& jobs, int rounds) {
  Measured measured;
  for (int round = 0; round < rounds; ++round) {
    std::array<double, kModes.size()> step{}, reduction{};
    for (int turn = 0; turn < kTurns; ++turn)
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        const auto mode = (i + static_cast<std::size_t>(round + turn)) % jobs.size();
        step[mode] += jobs[mode]->train() / kTurns;
        reduction[mode] += jobs[mode]->reduce() / kTurns;
      }
    for (std::size_t mode = 0; mode < jobs.size(); ++mode) {
      measured.steps[mode].push_back(step[mode]);
      measured.reductions[mode].push_back(reduction[mode]);
    }
  }
  return measured;
}

json figures(const Times& times) {
  json result;
  for (std::size_t mode = 0; mode < kModes.size(); ++mode)
    result[kModes[mode]] = {{"milliseconds", median_with_interval(times[mode])},
                            {"ratio_to_plain", ratios(times[mode], times[0])}};
  return result;
}

void run_rank(const launch::Placement& place, const std::filesystem::path& folder, int rounds) {
  torch::set_num_threads(1);
  std::vector<std::unique_ptr<Job>> jobs;
  for (const bool checked : {false, true})
    jobs.push_back(std::make_unique<Job>(checked, folder, place));
  measure(jobs, 1);  // warms up
  const auto measured = measure(jobs, rounds);
  if (!jobs[0]->first_parameter().equal(jobs[1]->first_parameter()))
    throw Error("checking changed the parameters: nothing to compare");
  if (place.rank != 0) return;
  const json result = {{"ddp_step", figures(measured.steps)},
                       {"small_all_reduce", figures(measured.reductions)}};
  write_file(folder / "result.json", result.dump());
}

json run_world(int world_size, const std::vector<std::string>& command) {
  const TemporaryFolder folder("lockstep-check");
  run_ranks(command, world_size, folder.path(), {{"OMP_NUM_THREADS", "1"}});
  return json::parse(read_file(folder.path() / "result.json"));
}

std::string table(const json& result) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(3);
  for (const int world_size : kWorldSizes)
    for (const char* job : {"ddp_step", "small_all_reduce"}) {
      const auto& of_job = result["ranks"][std::to_string(world_size)][job];
      const auto& ratio = of_job["checked"]["ratio_to_plain"];
      text << "  " << world_size << " ranks, " << std::left << std::setw(18) << job << std::right;
      for (const char* mode : kModes)
        text << std::setw(9) << of_job[mode]["milliseconds"]["median"].get<double>() << " ms";
      text << std::setw(9) << ratio["median"].get<double>() << "  [" << ratio["low"].get<double>()
           << ", " << ratio["high"].get<double>() << "]\n";
    }
  return text.str();
}

void run_all(const std::vector<std::string>& command, int rounds,
             const std::filesystem::path& file) {
  const double before = load_average();
  json of_ranks;
  for (const int world_size : kWorldSizes)
    of_ranks[std::to_string(world_size)] = run_world(world_size, command);
  const json result = {
      {"benchmark", "check_overhead"},
      {"job", "MLP 784-256-10, batch 32 a rank, SGD, Gloo; all_reduce of 16 floats"},
      {"processors", std::thread::hardware_concurrency()},
      {"torch", TORCH_VERSION},
      {"load_average", {{"before", before}, {"after", load_average()}}},
      {"rounds", rounds},
      {"steps_a_round", kTurns * kSteps},
      {"reductions_a_round", kTurns * kReductions},
      {"ranks", of_ranks}};
  write_file(file, result.dump(2) + "\n");
  std::cerr << table(result);
}

}  // namespace

int main(int argc, char** argv) {
  return main_of(argc, argv,
                 {.file = "checked_mode.json",
                  .about = "What the checked mode costs: plain and checked, side by side",
                  .each = "rounds of 64 steps and 800 reductions a mode"},
                 [&](int rounds, const std::string& file) {
                   if (const auto rank = as_rank())
                     run_rank(rank->place, rank->folder, rounds);
                   else
                     run_all({argv, argv + argc}, rounds, file);
                 });
}
