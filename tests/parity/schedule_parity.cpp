// Reads one case a line: the optimizer, the groups' learning rates, a number of steps, the step at which
// everything is made anew from its state_dict (0 = never), and schedules in prefix notation. Writes each
// group's learning rate and momentum after every step as little-endian float64, then a line with the
// schedules' state_dicts as Python would write them. schedule_parity.py compares both with Python's.
#include <lockstep/launch/guarded.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/lr_scheduler.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>

namespace {

using namespace lockstep;
using Schedules = std::vector<std::shared_ptr<LRScheduler>>;

template <class T>
T next(std::istream& in) {
  T value{};
  if (!(in >> value)) throw std::runtime_error("the case ends too early");
  return value;
}
template <class T>
std::vector<T> list(std::istream& in) {
  std::vector<T> values(next<std::size_t>(in));
  for (auto& value : values) value = next<T>(in);
  return values;
}

double by_lambda(std::int64_t which, std::int64_t epoch) {
  if (which == 0) return 1.0 / (1.0 + 0.01 * static_cast<double>(epoch));
  return std::pow(0.95, static_cast<double>(epoch / 30));
}

std::shared_ptr<LRScheduler> make(std::istream& in, torch::optim::Optimizer& optimizer) {
  const auto parts = [&] {
    Schedules made(next<std::size_t>(in));
    for (auto& part : made) part = make(in, optimizer);
    return made;
  };
  const auto kind = next<std::string>(in);
  if (kind == "linear") {
    LinearLROptions o;
    in >> o.start_factor >> o.end_factor >> o.total_iters;
    return std::make_shared<LinearLR>(optimizer, o);
  }
  if (kind == "cosine") {
    CosineAnnealingLROptions o;
    in >> o.T_max >> o.eta_min;
    return std::make_shared<CosineAnnealingLR>(optimizer, o);
  }
  if (kind == "step") {
    StepLROptions o;
    in >> o.step_size >> o.gamma;
    return std::make_shared<StepLR>(optimizer, o);
  }
  if (kind == "multistep") {
    MultiStepLROptions o{.milestones = list<std::int64_t>(in)};
    in >> o.gamma;
    return std::make_shared<MultiStepLR>(optimizer, o);
  }
  if (kind == "constant") {
    ConstantLROptions o;
    in >> o.factor >> o.total_iters;
    return std::make_shared<ConstantLR>(optimizer, o);
  }
  if (kind == "lambda") {
    LambdaLROptions o;
    for (const auto which : list<std::int64_t>(in))
      o.lr_lambda.push_back([which](std::int64_t epoch) { return by_lambda(which, epoch); });
    return std::make_shared<LambdaLR>(optimizer, o);
  }
  if (kind == "onecycle") {
    OneCycleLROptions o{.max_lr = list<double>(in)};
    in >> o.total_steps >> o.pct_start >> o.anneal_strategy >> o.cycle_momentum >> o.three_phase;
    return std::make_shared<OneCycleLR>(optimizer, o);
  }
  if (kind == "sequential") {
    auto made = parts();
    return std::make_shared<SequentialLR>(optimizer, std::move(made), list<std::int64_t>(in));
  }
  if (kind == "chained") return std::make_shared<ChainedScheduler>(optimizer, parts());
  throw std::runtime_error("no such schedule: " + kind);
}

struct Run {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  Schedules schedules;

  Run(const std::string& kind, const std::vector<double>& lrs, std::istream& in) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (const auto lr : lrs) {
      std::unique_ptr<torch::optim::OptimizerOptions> options;
      if (kind == "sgd")
        options = std::make_unique<torch::optim::SGDOptions>(lr);
      else
        options = std::make_unique<AdamOptions>(lr);
      groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1})}, std::move(options));
    }
    // LibTorch 2.15 gives a group whose rate is SGDOptions' default, 0.001, the optimizer's rate. So the two are equal.
    if (kind == "sgd")
      optimizer = std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.001));
    else
      optimizer = std::make_unique<Adam>(groups);
    schedules.resize(next<std::size_t>(in));
    for (auto& schedule : schedules) schedule = make(in, *optimizer);
  }

  double& momentum(std::size_t group) {
    auto& options = optimizer->param_groups()[group].options();
    if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) return sgd->momentum();
    return std::get<0>(dynamic_cast<AdamOptions&>(options).betas());
  }

  void restore(Run& from) {
    for (std::size_t i = 0; i < optimizer->param_groups().size(); ++i) {
      optimizer->param_groups()[i].options().set_lr(
          from.optimizer->param_groups()[i].options().get_lr());
      momentum(i) = from.momentum(i);
    }
    for (std::size_t i = 0; i < schedules.size(); ++i)
      schedules[i]->load_state_dict(from.schedules[i]->state_dict());
  }

  void write() {
    for (std::size_t i = 0; i < optimizer->param_groups().size(); ++i) {
      const double values[] = {optimizer->param_groups()[i].options().get_lr(), momentum(i)};
      std::cout.write(reinterpret_cast<const char*>(values), sizeof values);
    }
  }
};

std::string python(const Value& value) {
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.as_bool() ? "True" : "False";
  if (value.is_int()) return std::to_string(value.as_int());
  if (value.is_string()) return "'" + value.as_string() + "'";
  if (value.is_double()) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", value.as_double());
    return text;
  }
  std::string text;
  if (value.is_list()) {
    for (const auto& item : value.as_list()) text += python(item) + ", ";
    return "[" + text + "]";
  }
  for (const auto& [key, item] : value.as_dict())
    text += (key.is_string() ? "'" + key.text() + "'" : key.text()) + ": " + python(item) + ", ";
  return "{" + text + "}";
}

void answer(const std::string& line) {
  std::istringstream in(line);
  const auto kind = next<std::string>(in);
  const auto lrs = list<double>(in);
  const auto steps = next<int>(in), resume_at = next<int>(in);
  const auto described = in.tellg();
  auto run = std::make_unique<Run>(kind, lrs, in);
  run->write();
  for (int step = 1; step <= steps; ++step) {
    if (step == resume_at) {
      in.seekg(described);
      auto next_run = std::make_unique<Run>(kind, lrs, in);
      next_run->restore(*run);
      run = std::move(next_run);
    }
    for (const auto& schedule : run->schedules) schedule->step();
    run->write();
  }
  Value::List states;
  for (const auto& schedule : run->schedules) states.push_back(schedule->state_dict());
  std::cout << python(states) << "\n";
}

}  // namespace

int main() {
  return launch::guarded([&] {
    for (std::string line; std::getline(std::cin, line);) answer(line);
  });
}
