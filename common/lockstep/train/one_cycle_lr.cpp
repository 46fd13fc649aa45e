#include <lockstep/base/error.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/lr_scheduler.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <numbers>

namespace lockstep {
namespace {

// Where a group's options keep momentum, or beta1; null where they have neither.
double* momentum_of(torch::optim::OptimizerOptions& options) {
  if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) return &sgd->momentum();
  if (auto* rms = dynamic_cast<torch::optim::RMSpropOptions*>(&options)) return &rms->momentum();
  return nullptr;
}
double* beta1_of(torch::optim::OptimizerOptions& options) {
  if (auto* ours = dynamic_cast<AdamOptions*>(&options)) return &std::get<0>(ours->betas());
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options))
    return &std::get<0>(adam->betas());
  if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options))
    return &std::get<0>(adamw->betas());
  return nullptr;
}
double& cycled(torch::optim::OptimizerOptions& options) {
  auto* beta1 = beta1_of(options);
  auto* value = beta1 != nullptr ? beta1 : momentum_of(options);
  if (value == nullptr)
    throw UsageError(
        "OneCycleLR: this optimizer has neither momentum nor beta1 to cycle; set "
        "cycle_momentum to false");
  return *value;
}

double for_group(const std::vector<double>& values, std::size_t group, std::size_t groups,
                 const char* name) {
  if (values.size() != 1 && values.size() != groups)
    throw UsageError(std::string("OneCycleLR: ") + name + " has " + std::to_string(values.size()) +
                     " values; give one, or one for each of " + std::to_string(groups) +
                     " parameter groups");
  return values[values.size() == 1 ? 0 : group];
}

void check(std::int64_t total_steps, const std::string& anneal_strategy) {
  if (total_steps <= 0)
    throw UsageError("OneCycleLR: total_steps must be positive, and is " +
                     std::to_string(total_steps));
  if (anneal_strategy != "cos" && anneal_strategy != "linear")
    throw UsageError("OneCycleLR: anneal_strategy must be \"cos\" or \"linear\", and is \"" +
                     anneal_strategy + "\"");
}

}  // namespace

OneCycleLR::OneCycleLR(torch::optim::Optimizer& optimizer, const OneCycleLROptions& options)
    : LRScheduler(optimizer),
      total_steps_(options.total_steps),
      anneal_strategy_(options.anneal_strategy),
      cycle_momentum_(options.cycle_momentum) {
  check(total_steps_, anneal_strategy_);
  if (!(options.pct_start >= 0 && options.pct_start <= 1))
    throw UsageError("OneCycleLR: pct_start must be in [0, 1], and is " +
                     std::to_string(options.pct_start));
  const auto total = static_cast<double>(total_steps_);
  const double rise = options.pct_start * total - 1;
  phases_ = {{rise, "initial_lr", "max_lr", "max_momentum", "base_momentum"}};
  if (options.three_phase) {
    phases_.push_back({2 * options.pct_start * total - 2, "max_lr", "initial_lr", "base_momentum",
                       "max_momentum"});
    phases_.push_back({total - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"});
  } else {
    phases_.push_back({total - 1, "max_lr", "min_lr", "base_momentum", "max_momentum"});
  }
  auto& groups = optimizer.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto& values = (*values_)[i];
    const double max_lr = for_group(options.max_lr, i, groups.size(), "max_lr");
    const double high = for_group(options.max_momentum, i, groups.size(), "max_momentum");
    const double low = for_group(options.base_momentum, i, groups.size(), "base_momentum");
    if (cycle_momentum_) use_beta1_ = beta1_of(groups[i].options()) != nullptr;
    if (options.last_epoch != -1) continue;
    values["initial_lr"] = max_lr / options.div_factor;
    values["max_lr"] = max_lr;
    values["min_lr"] = values["initial_lr"] / options.final_div_factor;
    if (!cycle_momentum_) continue;
    values["max_momentum"] = cycled(groups[i].options()) = high;
    values["base_momentum"] = low;
  }
  check_fields();
  start(options.last_epoch);
}

void OneCycleLR::check_fields() const {
  check(total_steps_, anneal_strategy_);
  if (phases_.empty()) throw UsageError("OneCycleLR: \"_schedule_phases\" holds no phase");
  for (std::size_t i = 0; i < values_->size(); ++i) {
    const auto check_known = [&](const std::string& name) {
      if (!(*values_)[i].contains(name))
        throw UsageError("OneCycleLR: its phases need \"" + name + "\", which parameter group " +
                         std::to_string(i) +
                         " does not have; load the optimizer's state first, or put it into "
                         "schedule_values(optimizer)");
    };
    for (const auto& phase : phases_) {
      check_known(phase.start_lr);
      check_known(phase.end_lr);
      if (!cycle_momentum_) continue;
      check_known(phase.start_momentum);
      check_known(phase.end_momentum);
    }
    if (cycle_momentum_) cycled(optimizer_.param_groups()[i].options());
  }
}

double OneCycleLR::anneal(double from, double to, double share) const {
  if (anneal_strategy_ == "linear") return (to - from) * share + from;
  const double cosine = std::cos(std::numbers::pi * share) + 1;
  return to + (from - to) / 2.0 * cosine;
}

std::vector<double> OneCycleLR::get_lr() {
  if (last_epoch_ > total_steps_)
    throw Error("OneCycleLR was stepped " + std::to_string(last_epoch_) +
                " times and made for total_steps " + std::to_string(total_steps_));
  const auto now = static_cast<double>(last_epoch_);
  std::size_t i = 0;
  while (i + 1 < phases_.size() && now > phases_[i].end_step) ++i;
  const double begin = i == 0 ? 0.0 : phases_[i - 1].end_step;
  if (phases_[i].end_step == begin)
    throw Error("OneCycleLR: a phase has no length; total_steps " + std::to_string(total_steps_) +
                " are too few for its pct_start");
  const double share = (now - begin) / (phases_[i].end_step - begin);
  std::vector<double> lr;
  for (std::size_t g = 0; g < values_->size(); ++g) {
    const auto& values = (*values_)[g];
    lr.push_back(anneal(values.at(phases_[i].start_lr), values.at(phases_[i].end_lr), share));
    if (cycle_momentum_)
      cycled(optimizer_.param_groups()[g].options()) =
          anneal(values.at(phases_[i].start_momentum), values.at(phases_[i].end_momentum), share);
  }
  return lr;
}

void OneCycleLR::Phase::visit(StateFields& field) {
  field("end_step", end_step);
  field("start_lr", start_lr);
  field("end_lr", end_lr);
  field("start_momentum", start_momentum);
  field("end_momentum", end_momentum);
}

void OneCycleLR::visit(StateFields& field) {
  field("total_steps", total_steps_);
  field("_schedule_phases", phases_);
  field("_anneal_func_type", anneal_strategy_);
  field("cycle_momentum", cycle_momentum_);
  if (cycle_momentum_) field("use_beta1", use_beta1_);
}

}  // namespace lockstep
