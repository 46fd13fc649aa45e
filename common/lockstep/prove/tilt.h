// Moves parameters a little along a direction, for one step, while the loss is computed. What the program holds constant
// stays as it was: what it computes without gradients goes by the parameters before the move, and detach() gives what it
// gave in the run that was not moved. As python/lockstep_torch/proving/tilt.py.
#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/train/value.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::prove {

class Tilt {
 public:
  double size = 0;
  Value::List
      probes;  // {"first": update, "calls": whether a model is called, "directions": {optimizer: [...]}}
  Value::List kept;  // by update: what detach() gave in the run that was not moved

  // Before update `number`, with the parameters of each optimizer.
  void begin(std::int64_t number, const std::vector<std::vector<at::Tensor>>& parameters);
  // A model is called that the step trains.
  void start();
  // Update `number` begins.
  void end(std::int64_t number);
  // Before an operation.
  void look_at_grad_mode();
  at::Tensor detached(const at::Tensor& own);
  Value::List windows() const { return {windows_.begin(), windows_.end()}; }

 private:
  struct Moved {
    at::Tensor parameter, by, as_it_was = {};
  };

  void move();
  void put_back();

  std::vector<Moved> prepared_, moved_;
  std::int64_t until_ = -1;  // the update before which they come back
  bool is_moved_ = false;
  std::vector<Value::List> windows_{1};
  std::int64_t numbers_ = 0;
  std::size_t place_ = 0;  // in the window
};

}  // namespace lockstep::prove
