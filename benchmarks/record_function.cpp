// What it costs to see every operator: a training step of a small MLP and of a small convolutional net, without an
// at::RecordFunction callback and with three, side by side in one run.
//
//   record_function [FILE] [--rounds N]    default: the checkout's reports/out/record_function.json, 32
//
// LibTorch's modules have no forward hooks. A global callback sees what each operator is called with, so also what a
// layer is. The modes train one model in turn, 8 steps at a time, in an order that rotates. Each round gives one ratio
// to no callback; the file has their median and its distribution-free 95 % interval.
#include <ATen/record_function.h>
#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/train/models.h>

#include <array>
#include <functional>
#include <iomanip>
#include <iostream>
#include <string_view>
#include <thread>

#include "interval.h"
#include "rounds.h"

namespace {

using namespace lockstep;
using namespace lockstep::benchmark;
using nlohmann::json;

constexpr int kStepsPerTurn = 8, kTurnsPerRound = 4;
constexpr std::int64_t kBatch = 32;

std::int64_t layers_seen = 0, numbers_seen = 0;

std::unique_ptr<at::ObserverContext> do_nothing(const at::RecordFunction&) {
  return nullptr;
}

// LibTorch's Linear calls no aten::linear: of a matrix it is addmm(bias, input, weight.t()).
std::unique_ptr<at::ObserverContext> look_at_layers(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  const bool is_linear = name == "aten::addmm";
  if (!is_linear && name != "aten::conv2d") return nullptr;
  ++layers_seen;
  numbers_seen += c10::multiply_integers(function.inputs()[is_linear ? 1 : 0].toTensor().sizes());
  return nullptr;
}

struct Mode {
  const char* name;
  at::RecordFunctionCallback::StartCallback callback;  // null: none
  bool wants_inputs;
};
constexpr std::array<Mode, 4> kModes = {{{"none", nullptr, false},
                                         {"does_nothing", do_nothing, false},
                                         {"is_given_inputs", do_nothing, true},
                                         {"looks_at_layers", look_at_layers, true}}};

// As long as it lives, the mode's callback sees every operator of the process.
class Seeing {
 public:
  explicit Seeing(const Mode& mode) {
    if (mode.callback != nullptr)
      handle_ = at::addGlobalCallback(at::RecordFunctionCallback(mode.callback)
                                          .needsInputs(mode.wants_inputs)
                                          .scopes({at::RecordScope::FUNCTION}));
  }
  ~Seeing() {
    if (handle_ != at::INVALID_CALLBACK_HANDLE) at::removeCallback(handle_);
  }
  Seeing(const Seeing&) = delete;
  Seeing& operator=(const Seeing&) = delete;

 private:
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

struct Model {
  const char* name;
  const char* job;
  std::function<torch::nn::Sequential()> make;
  std::vector<std::int64_t> input;  // of a sample
  int layers;                       // linear and convolutional
};

std::vector<Model> models() {
  namespace nn = torch::nn;
  return {
      {"mlp",
       "MLP 784-256-10, batch 32, SGD",
       [] { return nn::Sequential(nn::Linear(784, 256), nn::ReLU(), nn::Linear(256, 10)); },
       {784},
       2},
      {"convolutions",
       "two convolutions 3x3 of 8 and 16 channels and a linear layer, 28x28 pixels, batch 32, SGD",
       [] {
         return nn::Sequential(nn::Conv2d(1, 8, 3), nn::ReLU(), nn::MaxPool2d(2),
                               nn::Conv2d(8, 16, 3), nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(),
                               nn::Linear(16 * 5 * 5, 10));
       },
       {1, 28, 28},
       3}};
}

class Job {
 public:
  explicit Job(const Model& model) {
    torch::manual_seed(1);
    net_ = model.make();
    optimizer_ = std::make_unique<torch::optim::SGD>(net_->parameters(), 0.01);
    auto shape = model.input;
    shape.insert(shape.begin(), kBatch);
    inputs_ = torch::randn(shape);
    targets_ = torch::randint(10, {kBatch});
  }
  // Milliseconds of one turn.
  double turn(const Mode& mode) {
    const Seeing seeing(mode);
    const auto begin = monotonic_ns();
    for (int i = 0; i < kStepsPerTurn; ++i) {
      net_->zero_grad();
      torch::nn::functional::cross_entropy(net_->forward(inputs_), targets_).backward();
      optimizer_->step();
    }
    return static_cast<double>(monotonic_ns() - begin) / 1e6;
  }

 private:
  torch::nn::Sequential net_{nullptr};
  std::unique_ptr<torch::optim::SGD> optimizer_;
  at::Tensor inputs_, targets_;
};

using Times = std::array<std::vector<double>, kModes.size()>;  // [mode][round], ms a step

Times measure(Job& job, int rounds) {
  return in_turns<kModes.size()>(rounds, kTurnsPerRound, [&](std::size_t mode) {
    return job.turn(kModes[mode]) / kStepsPerTurn;
  });
}

json measure(const Model& model, int rounds) {
  Job job(model);
  measure(job, 1);  // warms up
  layers_seen = numbers_seen = 0;
  const auto times = measure(job, rounds);
  if (layers_seen != std::int64_t{rounds} * kTurnsPerRound * kStepsPerTurn * model.layers ||
      numbers_seen == 0)
    throw Error("the callback did not see each layer once a step: nothing to measure");
  json modes;
  for (std::size_t mode = 0; mode < kModes.size(); ++mode)
    modes[kModes[mode].name] = {{"milliseconds_a_step", median_with_interval(times[mode])},
                                {"ratio_to_none", ratios(times[mode], times[0])}};
  return {{"job", model.job}, {"modes", modes}};
}

void print(const json& result) {
  for (const auto& model : result["models"]) {
    std::cerr << "  " << model["job"].get<std::string>() << "\n" << std::fixed;
    for (const auto& mode : kModes) {
      const auto& figures = model["modes"][mode.name];
      const auto& ratio = figures["ratio_to_none"];
      std::cerr << "  " << std::left << std::setw(20) << mode.name << std::right
                << std::setprecision(3) << std::setw(8)
                << figures["milliseconds_a_step"]["median"].get<double>() << " ms" << std::setw(9)
                << ratio["median"].get<double>() << "  [" << ratio["low"].get<double>() << ", "
                << ratio["high"].get<double>() << "]\n";
    }
  }
}

void run(int rounds, const std::string& file) {
  torch::set_num_threads(1);
  json result = {{"benchmark", "record_function"},
                 {"threads", torch::get_num_threads()},
                 {"processors", std::thread::hardware_concurrency()},
                 {"torch", TORCH_VERSION},
                 {"rounds", rounds},
                 {"steps_a_round", kStepsPerTurn * kTurnsPerRound}};
  const double load_before = load_average();
  for (const auto& model : models()) result["models"][model.name] = measure(model, rounds);
  result["load_average"] = {{"before", load_before}, {"after", load_average()}};
  write_file(file, result.dump(2) + "\n");
  print(result);
}

}  // namespace

int main(int argc, char** argv) {
  return main_of(argc, argv,
                 {.file = "record_function.json",
                  .rounds = 32,
                  .about = "What a callback on every operator costs a training step",
                  .each = "rounds of 32 steps a mode"},
                 run);
}
