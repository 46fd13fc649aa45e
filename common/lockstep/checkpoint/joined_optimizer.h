// An optimizer inside join(): a rank that is done takes no further steps, so its momentum, its moments and
// their count stay behind. At the end all get those of the rank whose parameters they get.
#pragma once

#include <lockstep/dist/process_group.h>
#include <lockstep/train/join.h>
#include <torch/optim/optimizer.h>

namespace lockstep {

//   JoinedOptimizer joined(optimizer, group);
//   join({model.engine(), joined}, [&] { ... });
//
// Plain SGD keeps nothing and needs it not. Python's Join leaves this to you. It adds nothing to an
// iteration; afterwards it is one broadcast_value() of the optimizer's state_dict, collective with all of
// what that throws. A schedule's position is not in it: step() it once an epoch, or load its state as well.
class JoinedOptimizer : public Joinable {
 public:
  // Both outlive it. The group is the model's.
  JoinedOptimizer(torch::optim::Optimizer& optimizer, ProcessGroupPtr group);

  const ProcessGroupPtr& join_process_group() const override { return group_; }
  void main_hook() override {}
  void post_hook(bool is_last_joiner) override;

 private:
  torch::optim::Optimizer& optimizer_;
  ProcessGroupPtr group_;
};

}  // namespace lockstep
