#include "gradient_scale.h"

#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/reference.h>

using namespace lockstep;

GradientScale::GradientScale(RankContext& job, std::int64_t outputs, std::int64_t global_batch,
                             int steps)
    : Notes(job),
      outputs_(outputs),
      global_batch_(global_batch),
      data_(fashion_mnist_or_synthetic(Split::train, global_batch * steps)) {}

void GradientScale::optimizer_made(torch::optim::Optimizer& optimizer) {
  Notes::optimizer_made(optimizer);
  one_process_ = Mlp(784, 32, outputs_);  // after the ranks' model: both draw random numbers
}

void GradientScale::update_begins(torch::optim::Optimizer&) {
  copy_parameters(parameters(), one_process_->parameters());
  one_process_->zero_grad();
  loss_of(one_process_, rows_of(data_, lockstep::global_batch(step_++, global_batch_))).backward();
  add_figure(context(), "gradient_scale",
             scale_of(flat_gradients(parameters()), flat_gradients(*one_process_)));
}

Measured gradient_scale(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "gradient_scale"), .tolerance = 1e-3};
}
