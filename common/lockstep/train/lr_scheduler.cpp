#include <lockstep/base/error.h>
#include <lockstep/observe/observer.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/schedule_values.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

// Each formula stands in the order of operations of torch/optim/lr_scheduler.py: another order, or a
// fused multiply-add, gives another last bit.

namespace lockstep {
namespace {

constexpr double kPi = std::numbers::pi;

void check(bool right, const char* what) {
  if (!right) throw UsageError(what);
}

// Beyond it a double does not count, and a few steps more would overflow.
constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;

void check_steps(const char* name, std::int64_t steps) {
  if (steps < -kMostSteps || steps > kMostSteps)
    throw Error(std::string("\"") + name + "\" of a state_dict: " + std::to_string(steps) +
                " is no number of steps");
}

void check_one_for_each_group(const char* name, const std::vector<double>& rates,
                              const torch::optim::Optimizer& optimizer) {
  if (rates.size() != optimizer.param_groups().size())
    throw Error(std::string("\"") + name + "\" of a state_dict: " + std::to_string(rates.size()) +
                " learning rates for " + std::to_string(optimizer.param_groups().size()) +
                " parameter groups");
}

}  // namespace

LRScheduler::LRScheduler(torch::optim::Optimizer& optimizer)
    : optimizer_(optimizer), values_(schedule_values(optimizer)) {}

void LRScheduler::start(std::int64_t last_epoch) {
  for (std::size_t i = 0; i < values_->size(); ++i) {
    auto& values = (*values_)[i];
    if (last_epoch == -1)
      values.try_emplace("initial_lr", optimizer_.param_groups()[i].options().get_lr());
    else if (values.count("initial_lr") == 0)
      throw UsageError("a schedule that starts at last_epoch " + std::to_string(last_epoch) +
                       " needs to know where it began: put \"initial_lr\" of group " +
                       std::to_string(i) + " into schedule_values(optimizer)");
    base_lrs_.push_back(values.at("initial_lr"));
  }
  last_epoch_ = last_epoch;
  initial_step();
  detail::values_are_taken(optimizer_);
}

void LRScheduler::initial_step() {
  step_count_ = 0;
  is_initial_ = true;
  step();
  is_initial_ = false;
}

namespace {
thread_local int steps_under_way = 0;  // of a schedule, and of its parts
}  // namespace

LRScheduler::OwnStep::OwnStep(LRScheduler& scheduler) : scheduler_(scheduler) {
  const bool own = steps_under_way++ == 0 && !scheduler.is_initial_;
  if (own && !std::exchange(scheduler.told_, true)) scheduler.tell_step();  // where it begins
}

LRScheduler::OwnStep::~OwnStep() {
  if (--steps_under_way == 0 && !scheduler_.is_initial_) scheduler_.tell_step();
}

void LRScheduler::tell_step() const {
  tell([&](Observer& to) { to.schedule(last_epoch_, planned_steps()); });
}

void LRScheduler::step() {
  const OwnStep own(*this);
  ++step_count_;
  ++last_epoch_;
  set_lr(get_lr());
}

void LRScheduler::restart() {
  last_epoch_ = 0;
  const auto closed = closed_form_lr();
  set_lr(closed ? *closed : get_lr());
}

void LRScheduler::set_lr(const std::vector<double>& lr) {
  auto& groups = optimizer_.param_groups();
  if (lr.size() != groups.size())
    throw Error("the optimizer has " + std::to_string(groups.size()) +
                " parameter groups and the schedule was made for " + std::to_string(lr.size()) +
                "; add groups before the schedule is made");
  for (std::size_t i = 0; i < lr.size(); ++i) groups[i].options().set_lr(lr[i]);
  last_lr_ = lr;
}

std::vector<double> LRScheduler::present_lr(const std::function<double(double)>& next) const {
  std::vector<double> result;
  for (const auto& group : optimizer_.param_groups())
    result.push_back(next ? next(group.options().get_lr()) : group.options().get_lr());
  return result;
}

std::vector<double> LRScheduler::of_base(const std::function<double(double)>& lr) const {
  std::vector<double> result;
  for (const auto base : base_lrs_) result.push_back(lr(base));
  return result;
}

Value LRScheduler::state_dict() const {
  Value::Dict state;
  StateFields field(&state);
  auto& self = const_cast<LRScheduler&>(*this);  // the same list reads and writes; this writes
  self.visit(field);
  bool is_initial = false, called_within_step = false;
  field("base_lrs", self.base_lrs_);
  field("last_epoch", self.last_epoch_);
  field("_step_count", self.step_count_);
  field("_is_initial", is_initial);
  field("_get_lr_called_within_step", called_within_step);
  field("_last_lr", self.last_lr_);
  return state;
}

void LRScheduler::load_state_dict(const Value& state) {
  const auto before = state_dict();
  try {
    read_state(state);
    check_state();
  } catch (...) {
    read_state(before);
    throw;
  }
}

void LRScheduler::read_state(const Value& state) {
  StateFields field(state.as_dict());
  visit(field);
  field("base_lrs", base_lrs_);
  field("last_epoch", last_epoch_);
  field("_step_count", step_count_);
  field("_last_lr", last_lr_);
}

void LRScheduler::check_state() const {
  check_one_for_each_group("base_lrs", base_lrs_, optimizer_);
  check_progress();
}

void LRScheduler::check_progress() const {
  check_one_for_each_group("_last_lr", last_lr_, optimizer_);
  check_steps("last_epoch", last_epoch_);
  check_steps("_step_count", step_count_);
  check_fields();
}

// ---- LambdaLR ----

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, LambdaLROptions options)
    : LRScheduler(optimizer), options_(std::move(options)) {
  const auto groups = optimizer.param_groups().size();
  if (options_.lr_lambda.size() == 1) options_.lr_lambda.resize(groups, options_.lr_lambda.front());
  check(options_.lr_lambda.size() == groups,
        "LambdaLR: give one function, or one for each parameter group");
  start(options_.last_epoch);
}

std::vector<double> LambdaLR::get_lr() {
  std::size_t group = 0;
  return of_base([&](double base) { return base * options_.lr_lambda[group++](last_epoch_); });
}

Value LambdaLR::state_dict() const {
  auto state = LRScheduler::state_dict();
  state.as_dict()["lr_lambdas"] = Value::List(options_.lr_lambda.size());
  return state;
}

// ---- StepLR ----

StepLR::StepLR(torch::optim::Optimizer& optimizer, const StepLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  check_fields();
  start(options.last_epoch);
}

void StepLR::check_fields() const {
  check(options_.step_size > 0, "StepLR: step_size must be positive");
}

std::vector<double> StepLR::get_lr() {
  if (last_epoch_ == 0 || last_epoch_ % options_.step_size != 0) return present_lr();
  return present_lr([&](double lr) { return lr * options_.gamma; });
}

std::optional<std::vector<double>> StepLR::closed_form_lr() const {
  const auto times = static_cast<double>(last_epoch_ / options_.step_size);
  return of_base([&](double base) { return base * std::pow(options_.gamma, times); });
}

void StepLR::visit(StateFields& field) {
  field("step_size", options_.step_size);
  field("gamma", options_.gamma);
}

// ---- MultiStepLR ----

MultiStepLR::MultiStepLR(torch::optim::Optimizer& optimizer, const MultiStepLROptions& options)
    : LRScheduler(optimizer), gamma_(options.gamma) {
  for (const auto milestone : options.milestones) ++milestones_[milestone];
  start(options.last_epoch);
}

std::vector<double> MultiStepLR::get_lr() {
  const auto now = milestones_.find(last_epoch_);
  if (now == milestones_.end()) return present_lr();
  const auto times = static_cast<double>(now->second);
  return present_lr([&](double lr) { return lr * std::pow(gamma_, times); });
}

std::optional<std::vector<double>> MultiStepLR::closed_form_lr() const {
  double passed = 0;
  for (const auto& [milestone, times] : milestones_)
    if (milestone <= last_epoch_) passed += static_cast<double>(times);
  return of_base([&](double base) { return base * std::pow(gamma_, passed); });
}

void MultiStepLR::visit(StateFields& field) {
  field("milestones", milestones_);
  field("gamma", gamma_);
}

// ---- ConstantLR ----

ConstantLR::ConstantLR(torch::optim::Optimizer& optimizer, const ConstantLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  check_fields();
  start(options.last_epoch);
}

void ConstantLR::check_fields() const {
  check(options_.factor > 0 && options_.factor <= 1, "ConstantLR: factor must be in (0, 1]");
}

std::vector<double> ConstantLR::get_lr() {
  if (last_epoch_ == 0) return present_lr([&](double lr) { return lr * options_.factor; });
  if (last_epoch_ != options_.total_iters) return present_lr();
  return present_lr([&](double lr) { return lr * (1.0 / options_.factor); });
}

std::optional<std::vector<double>> ConstantLR::closed_form_lr() const {
  const double over = last_epoch_ >= options_.total_iters ? 1 : 0;
  return of_base(
      [&](double base) { return base * (options_.factor + over * (1 - options_.factor)); });
}

void ConstantLR::visit(StateFields& field) {
  field("factor", options_.factor);
  field("total_iters", options_.total_iters);
}

// ---- LinearLR ----

LinearLR::LinearLR(torch::optim::Optimizer& optimizer, const LinearLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  check_fields();
  start(options.last_epoch);
}

void LinearLR::check_fields() const {
  check(options_.start_factor > 0 && options_.start_factor <= 1,
        "LinearLR: start_factor must be in (0, 1]");
  check(options_.end_factor >= 0 && options_.end_factor <= 1,
        "LinearLR: end_factor must be in [0, 1]");
  check(options_.total_iters > 0, "LinearLR: total_iters must be positive");
}

std::vector<double> LinearLR::get_lr() {
  if (last_epoch_ == 0) return present_lr([&](double lr) { return lr * options_.start_factor; });
  if (is_initial_ || last_epoch_ > options_.total_iters) return present_lr();
  const double rise = options_.end_factor - options_.start_factor;
  const auto total = static_cast<double>(options_.total_iters);
  const auto before = static_cast<double>(last_epoch_ - 1);
  return present_lr([&](double lr) {
    return lr * (1.0 + rise / (total * options_.start_factor + before * rise));
  });
}

std::optional<std::vector<double>> LinearLR::closed_form_lr() const {
  const double rise = options_.end_factor - options_.start_factor;
  const auto done = static_cast<double>(std::min(options_.total_iters, last_epoch_));
  const auto total = static_cast<double>(options_.total_iters);
  return of_base([&](double base) { return base * (options_.start_factor + rise * done / total); });
}

void LinearLR::visit(StateFields& field) {
  field("start_factor", options_.start_factor);
  field("end_factor", options_.end_factor);
  field("total_iters", options_.total_iters);
}

// ---- CosineAnnealingLR ----

CosineAnnealingLR::CosineAnnealingLR(torch::optim::Optimizer& optimizer,
                                     const CosineAnnealingLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  check_fields();
  start(options.last_epoch);
}

void CosineAnnealingLR::check_fields() const {
  check(options_.T_max > 0, "CosineAnnealingLR: T_max must be positive");
  check(options_.T_max <= kMostSteps, "CosineAnnealingLR: T_max must be at most 2^53");
}

std::vector<double> CosineAnnealingLR::get_lr() {
  if (is_initial_) return present_lr();
  const auto period = static_cast<double>(options_.T_max);
  if ((last_epoch_ - 1 - options_.T_max) % (2 * options_.T_max) == 0) {  // up again from eta_min
    std::size_t group = 0;
    return present_lr([&](double lr) {
      return lr + (base_lrs_[group++] - options_.eta_min) * (1 - std::cos(kPi / period)) / 2;
    });
  }
  const auto now = static_cast<double>(last_epoch_), before = static_cast<double>(last_epoch_ - 1);
  return present_lr([&](double lr) {
    return (1 + std::cos(kPi * now / period)) / (1 + std::cos(kPi * before / period)) *
               (lr - options_.eta_min) +
           options_.eta_min;
  });
}

std::optional<std::vector<double>> CosineAnnealingLR::closed_form_lr() const {
  const auto now = static_cast<double>(last_epoch_), period = static_cast<double>(options_.T_max);
  return of_base([&](double base) {
    return options_.eta_min + (base - options_.eta_min) * (1 + std::cos(kPi * now / period)) / 2;
  });
}

void CosineAnnealingLR::visit(StateFields& field) {
  field("T_max", options_.T_max);
  field("eta_min", options_.eta_min);
}

}  // namespace lockstep
