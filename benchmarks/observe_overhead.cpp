// What recording costs: training with DDP on 2 processes, plain and recorded, side by side.
//
//   observe_overhead [FILE] [--rounds N]    default: the checkout's reports/out/observe_overhead.json, 16
//
// Both processes hold four copies of one job and run them in turn, 8 steps at a time, in an order
// that rotates: what else the machine does meets all four. A round is 64 steps of each, so that it
// holds exactly one step with sampled value probes. Each round gives one ratio to plain; the file
// has their median and its distribution-free 95 % interval, and a table goes to stderr. A machine
// that is busy with something else widens the intervals: the file says how busy it was.
#include <lockstep/base/clock.h>
#include <lockstep/record/observed_backend.h>
#include <lockstep/record/probes.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <thread>

#include "interval.h"
#include "ranks.h"
#include "rounds.h"

namespace {

using namespace lockstep;
using namespace lockstep::benchmark;
using nlohmann::json;

constexpr int kRanks = 2;
constexpr int kStepsPerTurn = 8, kTurnsPerRound = 8;
constexpr std::int64_t kBatch = 32;

struct Mode {
  const char* name;
  bool observed;
  std::int64_t probe_every;  // 0: no probes
};
constexpr std::array<Mode, 4> kModes = {{{"plain", false, 0},
                                         {"observed", true, 0},
                                         {"sampled_probes", true, 64},
                                         {"every_step_probes", true, 1}}};

// One copy of the job, under one mode.
class Job {
 public:
  Job(const Mode& mode, const std::filesystem::path& folder, const launch::Placement& place) {
    if (mode.observed)
      writer_ = std::make_shared<trace::Writer>(
          folder / mode.name,
          trace::Participant{.rank = place.rank, .world_size = place.world_size});
    InitOptions init;
    init.init_method = "file://" + (folder / (std::string(mode.name) + ".store")).string();
    if (writer_)
      init.decorate = [this](BackendPtr backend, const StorePtr&) {
        return record::observe(std::move(backend), writer_);
      };
    group_ = init_process_group(init);
    torch::manual_seed(1);
    net_ = Mlp(784, 2048, 10);
    probes_ = std::make_unique<record::Probes>(mode.probe_every > 0 ? writer_ : nullptr,
                                               record::ProbeOptions{.every = mode.probe_every});
    probes_->attach(*net_);
    model_ = std::make_unique<DistributedDataParallel<Mlp>>(net_, group_);
    optimizer_ = std::make_unique<torch::optim::SGD>(net_->parameters(), 0.01);
    torch::manual_seed(static_cast<std::uint64_t>(100 + place.rank));
    inputs_ = torch::randn({kBatch, 784});
    targets_ = torch::randint(10, {kBatch});
    ids_.resize(kBatch);
    std::iota(ids_.begin(), ids_.end(), std::int64_t{0});
    probes_->start();
  }
  ~Job() { destroy_process_group(group_); }

  void step() {
    namespace F = torch::nn::functional;
    probes_->samples("train", ids_);
    net_->zero_grad();
    const auto each = F::cross_entropy((*model_)(inputs_), targets_,
                                       F::CrossEntropyFuncOptions().reduction(torch::kNone));
    const auto loss = each.mean();
    probes_->loss(loss, each);
    loss.backward();
    probes_->gradients_ready();
    optimizer_->step();
    probes_->updated(*optimizer_);
  }

  // Milliseconds of one turn; both ranks start together.
  double turn() {
    barrier(*group_);
    const auto begin = monotonic_ns();
    for (int i = 0; i < kStepsPerTurn; ++i) step();
    return static_cast<double>(monotonic_ns() - begin) / 1e6;
  }

  at::Tensor first_parameter() const { return net_->parameters().front(); }

 private:
  std::shared_ptr<trace::Writer> writer_;
  ProcessGroupPtr group_;
  Mlp net_{nullptr};
  std::unique_ptr<record::Probes> probes_;
  std::unique_ptr<DistributedDataParallel<Mlp>> model_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  at::Tensor inputs_, targets_;
  std::vector<std::int64_t> ids_;
};

using Times = std::array<std::vector<double>, kModes.size()>;  // [mode][round], ms a step

Times measure(std::vector<std::unique_ptr<Job>>& jobs, int rounds) {
  return in_turns<kModes.size()>(
      rounds, kTurnsPerRound, [&](std::size_t mode) { return jobs[mode]->turn() / kStepsPerTurn; });
}

// What the probes add to a step in which they run: the modes' difference, round by round.
json milliseconds_a_probed_step(const Times& times) {
  std::vector<double> each;
  for (std::size_t i = 0; i < times[3].size(); ++i) each.push_back(times[3][i] - times[1][i]);
  return median_with_interval(std::move(each));
}

// A backend that does nothing, so that what is left is the cost of observing.
class NoBackend final : public c10d::Backend {
 public:
  NoBackend() : Backend(0, 1) {
    done_ = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
    done_->markCompleted();
  }
  const std::string getBackendName() const override { return "gloo"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    return c10d::Work::create_from_future(done_);
  }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> done_;
};

double microseconds_a_call(const BackendPtr& backend) {
  constexpr int kCalls = 20'000;
  std::vector<at::Tensor> tensors{torch::zeros({4})};
  const auto begin = monotonic_ns();
  for (int i = 0; i < kCalls; ++i) backend->allreduce(tensors, {});
  return static_cast<double>(monotonic_ns() - begin) / 1e3 / kCalls;
}

json cost_of_a_collective(const std::filesystem::path& folder) {
  const BackendPtr bare = c10::make_intrusive<NoBackend>();
  const auto observed = record::observe(
      bare, std::make_shared<trace::Writer>(folder / "calls", trace::Participant{}));
  std::vector<double> costs;
  for (int i = 0; i < 15; ++i)
    costs.push_back(microseconds_a_call(observed) - microseconds_a_call(bare));
  return median_with_interval(std::move(costs));
}

json report(const Times& times, double load_before, const std::filesystem::path& folder) {
  json modes;
  for (std::size_t mode = 0; mode < kModes.size(); ++mode)
    modes[kModes[mode].name] = {{"milliseconds_a_step", median_with_interval(times[mode])},
                                {"ratio_to_plain", ratios(times[mode], times[0])}};
  return {{"benchmark", "observe_overhead"},
          {"job", "MLP 784-2048-10 (1.6 million parameters), batch 32 a rank, SGD, Gloo"},
          {"ranks", kRanks},
          {"threads_a_rank", torch::get_num_threads()},
          {"processors", std::thread::hardware_concurrency()},
          {"torch", TORCH_VERSION},
          {"load_average", {{"before", load_before}, {"after", load_average()}}},
          {"rounds", times[0].size()},
          {"steps_a_round", kStepsPerTurn * kTurnsPerRound},
          {"modes", modes},
          {"sampled_probes_ratio_to_observed", ratios(times[2], times[1])},
          {"milliseconds_a_probed_step", milliseconds_a_probed_step(times)},
          {"microseconds_a_collective", cost_of_a_collective(folder)}};
}

std::string row(const std::string& name, const json& milliseconds, const json& ratio) {
  std::ostringstream line;
  line << "  " << std::left << std::setw(24) << name << std::right << std::fixed;
  if (!milliseconds.is_null())
    line << std::setprecision(2) << std::setw(8) << milliseconds["median"].get<double>() << " ms";
  else
    line << std::setw(11) << "";
  line << std::setprecision(3) << std::setw(9) << ratio["median"].get<double>() << "  ["
       << ratio["low"].get<double>() << ", " << ratio["high"].get<double>() << "]\n";
  return line.str();
}

std::string table(const json& result) {
  std::string text = "  " + result["job"].get<std::string>() + "\n";
  for (const auto& mode : kModes) {
    const auto& figures = result["modes"][mode.name];
    text += row(mode.name, figures["milliseconds_a_step"], figures["ratio_to_plain"]);
  }
  return text + row("sampled to observed", nullptr, result["sampled_probes_ratio_to_observed"]);
}

void run_rank(const launch::Placement& place, const std::filesystem::path& folder, int rounds,
              const std::filesystem::path& file) {
  torch::set_num_threads(1);
  const double load_before = load_average();
  std::vector<std::unique_ptr<Job>> jobs;
  for (const auto& mode : kModes) jobs.push_back(std::make_unique<Job>(mode, folder, place));
  measure(jobs, 1);  // warms up, and leaves the first steps, which are all probed, behind
  const auto times = measure(jobs, rounds);
  for (const auto& job : jobs)
    if (!job->first_parameter().equal(jobs[0]->first_parameter()))
      throw Error("recording changed the parameters: nothing to compare");
  if (place.rank != 0) return;
  const auto result = report(times, load_before, folder);
  write_file(file, result.dump(2) + "\n");
  std::cerr << table(result);
}

void run_all(const std::vector<std::string>& command) {
  const TemporaryFolder folder("lockstep-observe");
  for (const auto& mode : kModes) std::filesystem::create_directory(folder.path() / mode.name);
  std::filesystem::create_directory(folder.path() / "calls");
  std::cerr << run_ranks(command, kRanks, folder.path(), {{"OMP_NUM_THREADS", "1"}});
}

}  // namespace

int main(int argc, char** argv) {
  return main_of(argc, argv,
                 {.file = "observe_overhead.json",
                  .about = "What recording costs: plain, observed and probed DDP side by side",
                  .each = "rounds of 64 steps a mode"},
                 [&](int rounds, const std::string& file) {
                   if (const auto rank = as_rank())
                     run_rank(rank->place, rank->folder, rounds, file);
                   else
                     run_all({argv, argv + argc});
                 });
}
