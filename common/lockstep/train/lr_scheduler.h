// torch.optim.lr_scheduler for C++: Python's learning rates to the last bit, and Python's state_dict.
//
//   auto warmup = std::make_shared<LinearLR>(optimizer, LinearLROptions{.start_factor = 0.1});
//   auto decay = std::make_shared<CosineAnnealingLR>(optimizer, CosineAnnealingLROptions{.T_max = 95});
//   SequentialLR schedule(optimizer, {warmup, decay}, {5});
//   for each update:  optimizer.step();  schedule.step();
//
// A schedule counts its own steps and knows neither updates nor epochs nor ranks: its lengths are in
// whatever unit step() is called in. Construction takes the first step, as in Python: it sets the
// optimizer's lr. Nothing here is collective. An optimizer must outlive its schedules, and have all its
// parameter groups before the first one is made. Options out of range throw UsageError.
#pragma once

#include <lockstep/train/state_fields.h>
#include <lockstep/train/value.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// What Python's schedules keep in each of the optimizer's param_groups beside its options: "initial_lr",
// and for OneCycleLR "max_lr", "min_lr", "max_momentum" and "base_momentum". All schedules of one optimizer
// share it; it lives as long as one of them, or a pointer from here. A program that starts a schedule at a
// later last_epoch puts what it needs in first, or loads the optimizer's state.
using ScheduleValues = std::vector<std::map<std::string, double>>;
std::shared_ptr<ScheduleValues> schedule_values(torch::optim::Optimizer& optimizer);

// Adds what a file holds of them, one map for each group. Where the optimizer has no schedule yet, they wait
// for its first one, until the next call. LibTorch does not say when an optimizer ends: values that no schedule
// ever took wait as long as the first parameter lives, and an optimizer of the same parameters that is made
// later at the same address has them, too.
void load_schedule_values(torch::optim::Optimizer& optimizer, const ScheduleValues& loaded);

class LRScheduler {
 public:
  virtual ~LRScheduler() = default;
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  // Sets the next learning rates. Call it after optimizer.step().
  virtual void step();
  // Per parameter group, as the last step set them.
  const std::vector<double>& get_last_lr() const { return last_lr_; }
  std::int64_t last_epoch() const { return last_epoch_; }  // steps taken, in Python's word

  // Python's keys. The optimizer's own learning rates are not part of it: most schedules compute the next
  // rate from the present one, so restore the optimizer too. load_state_dict leaves alone what the state
  // does not hold. It throws Error naming the entry, and changes nothing, for a value of another kind or
  // for another number of groups, and UsageError for a value that the constructor does not take.
  virtual Value state_dict() const;
  void load_state_dict(const Value& state);

 protected:
  explicit LRScheduler(torch::optim::Optimizer& optimizer);
  // Takes initial_lr and last_epoch over. Every schedule's constructor ends with start().
  void start(std::int64_t last_epoch);

  virtual std::vector<double> get_lr() = 0;
  // The learning rates at last_epoch from the first ones alone, where the schedule has such a formula.
  virtual std::optional<std::vector<double>> closed_form_lr() const { return std::nullopt; }
  virtual void visit(StateFields& field) {
    static_cast<void>(field);
  }  // its own fields, for state_dict
  // Throws UsageError for fields out of range, whether from a constructor's options or a file.
  virtual void check_fields() const {}

  // load_state_dict is both: the first takes the values as they are, the second judges them.
  virtual void read_state(const Value& state);
  virtual void check_state() const;
  void check_progress() const;  // what every schedule's state has

  // The steps that the schedule was made for; 0 where it has no end, or its options do not say.
  virtual std::int64_t planned_steps() const { return 0; }
  // Lives through a step that is a program's own, no part's of another schedule, and tells of it.
  class OwnStep {
   public:
    explicit OwnStep(LRScheduler& scheduler);
    ~OwnStep();

   private:
    LRScheduler& scheduler_;
  };

  // What SequentialLR asks of a part: undo the step that its constructor took; take it again; begin now.
  virtual void undo() { --last_epoch_; }
  void initial_step();
  virtual void restart();

  // lr of each group, mapped.
  std::vector<double> present_lr(const std::function<double(double)>& next = nullptr) const;
  std::vector<double> of_base(const std::function<double(double)>& lr) const;

  torch::optim::Optimizer& optimizer_;
  std::shared_ptr<ScheduleValues> values_;
  std::vector<double> base_lrs_, last_lr_;
  std::int64_t last_epoch_ = -1;
  std::int64_t step_count_ = 0;
  bool is_initial_ = false;

 private:
  void tell_step() const;
  bool told_ = false;
  void set_lr(const std::vector<double>& lr);
  friend class ComposedLR;
  friend class SequentialLR;
};

struct LambdaLROptions {
  // Of last_epoch: what the initial lr is multiplied with. One for all groups, or one for each.
  std::vector<std::function<double(std::int64_t)>> lr_lambda;
  std::int64_t last_epoch = -1;
};
class LambdaLR final : public LRScheduler {
 public:
  LambdaLR(torch::optim::Optimizer& optimizer, LambdaLROptions options);
  Value state_dict() const override;  // the functions are not in it: None, as in Python

 private:
  std::vector<double> get_lr() override;
  LambdaLROptions options_;
};

struct StepLROptions {
  std::int64_t step_size = 0;
  double gamma = 0.1;
  std::int64_t last_epoch = -1;
};
class StepLR final : public LRScheduler {
 public:
  StepLR(torch::optim::Optimizer& optimizer, const StepLROptions& options);

 private:
  std::vector<double> get_lr() override;
  std::optional<std::vector<double>> closed_form_lr() const override;
  void visit(StateFields& field) override;
  void check_fields() const override;
  StepLROptions options_;
};

struct MultiStepLROptions {
  std::vector<std::int64_t> milestones;  // one that is named twice counts twice
  double gamma = 0.1;
  std::int64_t last_epoch = -1;
};
class MultiStepLR final : public LRScheduler {
 public:
  MultiStepLR(torch::optim::Optimizer& optimizer, const MultiStepLROptions& options);

 private:
  std::vector<double> get_lr() override;
  std::optional<std::vector<double>> closed_form_lr() const override;
  void visit(StateFields& field) override;
  std::map<std::int64_t, std::int64_t> milestones_;  // how often each is named
  double gamma_;
};

struct ConstantLROptions {
  double factor = 1.0 / 3;
  std::int64_t total_iters = 5;
  std::int64_t last_epoch = -1;
};
class ConstantLR final : public LRScheduler {
 public:
  ConstantLR(torch::optim::Optimizer& optimizer, const ConstantLROptions& options);

 private:
  std::vector<double> get_lr() override;
  std::optional<std::vector<double>> closed_form_lr() const override;
  void visit(StateFields& field) override;
  void check_fields() const override;
  ConstantLROptions options_;
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1.0;
  std::int64_t total_iters = 5;
  std::int64_t last_epoch = -1;
};
class LinearLR final : public LRScheduler {
 public:
  LinearLR(torch::optim::Optimizer& optimizer, const LinearLROptions& options);

 private:
  std::vector<double> get_lr() override;
  std::optional<std::vector<double>> closed_form_lr() const override;
  void visit(StateFields& field) override;
  void check_fields() const override;
  LinearLROptions options_;
};

struct CosineAnnealingLROptions {
  std::int64_t T_max = 0;  // steps from the initial lr down to eta_min; beyond them it rises again
  double eta_min = 0;
  std::int64_t last_epoch = -1;
};
class CosineAnnealingLR final : public LRScheduler {
 public:
  CosineAnnealingLR(torch::optim::Optimizer& optimizer, const CosineAnnealingLROptions& options);

 private:
  std::vector<double> get_lr() override;
  std::optional<std::vector<double>> closed_form_lr() const override;
  std::int64_t planned_steps() const override { return options_.T_max; }
  void visit(StateFields& field) override;
  void check_fields() const override;
  CosineAnnealingLROptions options_;
};

struct OneCycleLROptions {
  std::vector<double> max_lr;    // this and the momentums: one for all groups, or one for each
  std::int64_t total_steps = 0;  // a further step() throws Error
  double pct_start = 0.3;        // share of the steps in which lr rises
  std::string anneal_strategy = "cos";  // or "linear"
  bool cycle_momentum = true;  // momentum, or beta1 where the optimizer has betas, runs against lr
  std::vector<double> base_momentum = {0.85};
  std::vector<double> max_momentum = {0.95};
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool three_phase = false;
  // Other than -1, it goes on with the values that a former OneCycleLR left in schedule_values(optimizer), and
  // not with those above: "initial_lr", "max_lr" and "min_lr", and with cycle_momentum "max_momentum" and
  // "base_momentum". Throws UsageError naming the one that is missing.
  std::int64_t last_epoch = -1;
};
class OneCycleLR final : public LRScheduler {
 public:
  OneCycleLR(torch::optim::Optimizer& optimizer, const OneCycleLROptions& options);

 private:
  // A phase goes from one of the group's values to another: "initial_lr", "max_lr", ...
  struct Phase {
    double end_step = 0;
    std::string start_lr, end_lr, start_momentum, end_momentum;
    void visit(StateFields& field);
  };
  std::vector<double> get_lr() override;
  void visit(StateFields& field) override;
  void check_fields() const override;
  double anneal(double start, double end, double share) const;
  std::int64_t planned_steps() const override { return total_steps_; }

  std::int64_t total_steps_;
  std::vector<Phase> phases_;
  std::string anneal_strategy_;
  bool cycle_momentum_;
  bool use_beta1_ = false;
};

// A schedule of schedules of one optimizer. Its state_dict holds theirs under "_schedulers".
class ComposedLR : public LRScheduler {
 public:
  Value state_dict() const override;

 protected:
  using Schedulers = std::vector<std::shared_ptr<LRScheduler>>;
  ComposedLR(torch::optim::Optimizer& optimizer, Schedulers schedulers);
  std::vector<double> get_lr() override;
  void read_state(const Value& state) override;
  void check_state() const override;
  void undo() override;
  void restart()
      override;  // throws Error: as in Python, it can only be the first part of a SequentialLR
  Schedulers schedulers_;
};

// One schedule after the other: schedulers[i + 1] begins, from its closed form at 0, when milestones[i]
// steps are done.
class SequentialLR final : public ComposedLR {
 public:
  SequentialLR(torch::optim::Optimizer& optimizer, Schedulers schedulers,
               std::vector<std::int64_t> milestones, std::int64_t last_epoch = -1);
  void step() override;

 private:
  std::int64_t planned_steps() const override;
  void visit(StateFields& field) override;
  void check_fields() const override;
  std::vector<std::int64_t> milestones_;
};

// All of them at every step; each goes on from the learning rate that the one before it left. last_epoch() is the first
// one's: Python's has none.
class ChainedScheduler final : public ComposedLR {
 public:
  ChainedScheduler(torch::optim::Optimizer& optimizer, Schedulers schedulers);
  void step() override;

 protected:
  void read_state(const Value& state) override;

 private:
  void follow();
};

}  // namespace lockstep
