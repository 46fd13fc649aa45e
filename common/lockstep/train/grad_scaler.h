// Mixed precision: torch.amp.GradScaler and torch.autocast for C++. (LibTorch has neither;
// clipping is in clip_grad.h.)
//
//   GradScaler scaler({}, group);
//   at::Tensor loss;
//   { Autocast autocast(at::kCUDA, at::kHalf); loss = cross_entropy(model(inputs), targets); }
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);                        // only where the gradients are looked at, or clipped
//   clip_grad_norm_(parameters, 1);
//   scaler.step(optimizer);
//   scaler.update();
#pragma once

#include <lockstep/dist/process_group.h>
#include <lockstep/train/value.h>
#include <torch/torch.h>

#include <map>
#include <optional>

namespace lockstep {

// Python's arguments, Python's defaults.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;     // > 1
  double backoff_factor = 0.5;  // < 1
  std::int64_t growth_interval = 2000;
  bool enabled = true;  // false: scale() and unscale_() do nothing, step() steps
};

// Multiplies the loss, so that gradients in float16 do not vanish, and leaves out the steps whose gradients
// have an infinity or a NaN. torch.amp.GradScaler's results, bit for bit, on any device; with one difference:
// given a group, unscale_() (and so step(), where it was not called before) is collective, and what one
// rank finds, all have found. DDP's gradients are alike on all ranks and so need no group.
//
// One device. Throws UsageError where Python asserts or raises: options out of range; unscale_() twice, or
// step() twice, without update(); anything before the first scale(); a float16 gradient, or none at all
// (with a group, after its collective). A group's failure is a CollectiveError.
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {}, ProcessGroupPtr group = {});

  at::Tensor scale(const at::Tensor& outputs);  // outputs times the scale
  void unscale_(torch::optim::Optimizer& optimizer);
  // True where the optimizer stepped, false where the step was left out.
  bool step(torch::optim::Optimizer& optimizer, Place place = Place::here());
  // At the end of an iteration: a smaller scale after a step left out, a larger one after growth_interval
  // steps that were not. Or the one given.
  void update(std::optional<double> new_scale = std::nullopt);

  // Whether unscale_() found an infinity or a NaN, on any rank of the group. Waits for the device.
  bool found_nonfinite(const torch::optim::Optimizer& optimizer) const;
  double get_scale() const;  // 1 where not enabled. Waits for the device
  bool is_enabled() const { return options_.enabled; }

  // Python's five entries: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker. Between
  // update() and the next scale(). Empty where not enabled; then load_state_dict does nothing.
  Value state_dict() const;
  void load_state_dict(const Value& state);

 private:
  struct OptimizerState {
    at::Tensor found_inf;  // float32, > 0 where something was found
    bool stepped = false;
  };
  void check_scaled(const char* call) const;

  GradScalerOptions options_;
  ProcessGroupPtr group_;
  double initial_scale_;
  std::int64_t initial_tracker_ = 0;
  at::Tensor scale_, growth_tracker_;  // made by the first scale(), on its device
  std::map<const torch::optim::Optimizer*, OptimizerState> optimizers_;  // since the last update()
};

// While it lives, operations that can compute in `dtype` do so on this thread and kind of device:
// torch.autocast, for the forward and the loss; backward belongs outside. May be nested; `enabled` false
// switches it off inside another. On the way out the casts of parameters are forgotten.
class Autocast {
 public:
  Autocast(c10::DeviceType device, at::ScalarType dtype, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool enabled_before_;
  at::ScalarType dtype_before_;
};

}  // namespace lockstep
