#include <lockstep/base/error.h>
#include <lockstep/train/lr_scheduler.h>

#include <algorithm>

namespace lockstep {

ComposedLR::ComposedLR(torch::optim::Optimizer& optimizer, Schedulers schedulers)
    : LRScheduler(optimizer), schedulers_(std::move(schedulers)) {
  if (schedulers_.empty()) throw UsageError("a schedule of schedules needs at least one");
  for (std::size_t i = 0; i < schedulers_.size(); ++i)
    if (!schedulers_[i] || &schedulers_[i]->optimizer_ != &optimizer)
      throw UsageError("schedule " + std::to_string(i) +
                       (schedulers_[i] ? " belongs to another optimizer" : " is null"));
}

std::vector<double> ComposedLR::get_lr() {
  return present_lr();
}

void ComposedLR::undo() {
  for (const auto& scheduler : schedulers_) scheduler->undo();
}

void ComposedLR::restart() {
  throw Error(
      "a SequentialLR or ChainedScheduler can only be the first part of a SequentialLR: it has "
      "no way to begin in the middle (nor has Python's)");
}

Value ComposedLR::state_dict() const {
  Value::Dict state;
  StateFields field(&state);
  auto& self = const_cast<ComposedLR&>(*this);  // as in LRScheduler::state_dict
  self.visit(field);
  field("_last_lr", self.last_lr_);
  Value::List parts;
  for (const auto& scheduler : schedulers_) parts.push_back(scheduler->state_dict());
  state["_schedulers"] = std::move(parts);
  return state;
}

void ComposedLR::read_state(const Value& state) {
  const auto& parts = state.at("_schedulers").as_list();
  if (parts.size() != schedulers_.size())
    throw Error("\"_schedulers\" of a state_dict: " + std::to_string(parts.size()) +
                " schedules for " + std::to_string(schedulers_.size()));
  StateFields field(state.as_dict());
  visit(field);
  field("_last_lr", last_lr_);
  for (std::size_t i = 0; i < parts.size(); ++i) schedulers_[i]->read_state(parts[i]);
}

void ComposedLR::check_state() const {
  check_progress();
  for (const auto& scheduler : schedulers_) scheduler->check_state();
}

SequentialLR::SequentialLR(torch::optim::Optimizer& optimizer, Schedulers schedulers,
                           std::vector<std::int64_t> milestones, std::int64_t last_epoch)
    : ComposedLR(optimizer, std::move(schedulers)), milestones_(std::move(milestones)) {
  check_fields();
  last_epoch_ = last_epoch + 1;
  // Every part's constructor has taken its first step. Take all of them back, then the first part's again.
  for (std::size_t i = 0; i < values_->size(); ++i)
    optimizer_.param_groups()[i].options().set_lr((*values_)[i].at("initial_lr"));
  undo();
  schedulers_.front()->initial_step();
  last_lr_ = schedulers_.front()->get_last_lr();
}

void SequentialLR::check_fields() const {
  if (milestones_.size() + 1 != schedulers_.size())
    throw UsageError("SequentialLR: " + std::to_string(schedulers_.size()) +
                     " schedules need one milestone less, and there are " +
                     std::to_string(milestones_.size()));
}

// Of a last part that was made for a number of steps.
std::int64_t SequentialLR::planned_steps() const {
  const auto last = schedulers_.back()->planned_steps();
  return last == 0 || milestones_.empty() ? last : milestones_.back() + last;
}

void SequentialLR::step() {
  const OwnStep own(*this);
  ++last_epoch_;
  const auto next = std::upper_bound(milestones_.begin(), milestones_.end(), last_epoch_);
  auto& scheduler = *schedulers_[static_cast<std::size_t>(next - milestones_.begin())];
  if (next != milestones_.begin() && *std::prev(next) == last_epoch_)
    scheduler.restart();
  else
    scheduler.step();
  last_lr_ = scheduler.get_last_lr();
}

void SequentialLR::visit(StateFields& field) {
  field("_milestones", milestones_);
  field("last_epoch", last_epoch_);
}

ChainedScheduler::ChainedScheduler(torch::optim::Optimizer& optimizer, Schedulers schedulers)
    : ComposedLR(optimizer, std::move(schedulers)) {
  follow();
}

void ChainedScheduler::step() {
  const OwnStep own(*this);
  for (const auto& scheduler : schedulers_) scheduler->step();
  follow();
}

void ChainedScheduler::read_state(const Value& state) {
  ComposedLR::read_state(state);
  last_epoch_ = schedulers_.front()->last_epoch();
}

void ChainedScheduler::follow() {
  last_lr_ = present_lr();
  last_epoch_ = schedulers_.front()->last_epoch();
}

}  // namespace lockstep
