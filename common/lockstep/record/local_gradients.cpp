#include <lockstep/record/held_parameters.h>
#include <lockstep/record/local_gradients.h>
#include <lockstep/record/probes.h>
#include <lockstep/record/summarize.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <limits>
#include <mutex>

namespace lockstep::record {
namespace {

struct Locked : torch::autograd::Node {
  using Node::mutex_;  // under which a leaf's node writes .grad
};

// .grad; nothing where a backward of another thread is writing it.
at::Tensor held_by(const at::Tensor& parameter) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!node) return {};
  const std::unique_lock lock((*node).*(&Locked::mutex_), std::try_to_lock);
  return lock.owns_lock() ? parameter.grad() : at::Tensor();
}

bool are_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.layout() == at::kStrided && b.layout() == at::kStrided && a.device() == b.device() &&
         a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
}

std::size_t bytes_of(const at::Tensor& tensor) {
  return tensor.is_sparse() ? tensor._indices().nbytes() + tensor._values().nbytes()
                            : tensor.nbytes();
}

at::Tensor greatest_of(const at::Tensor& gradient) {
  const auto numbers = gradient.is_sparse() ? gradient._values() : gradient;
  if (numbers.numel() == 0) return at::zeros({}, numbers.options());
  return at::linalg_vector_norm(numbers, std::numeric_limits<double>::infinity());
}

trace::Summary known_by(const at::Tensor& greatest) {
  return {.hash = 0,
          .norm = greatest.item<double>(),
          .sketch = std::vector<double>(trace::kSketch, std::numeric_limits<double>::quiet_NaN())};
}

}  // namespace

void LocalGradients::assign(std::size_t parameters) {
  gradients_.assign(parameters, {});
  kept_ = 0;
}

void LocalGradients::forget() {
  assign(gradients_.size());
}

void LocalGradients::forget(std::size_t place) {
  if (const auto& sum = gradients_[place].sum; sum.defined()) kept_ -= bytes_of(sum);
  gradients_[place] = {};
}

void LocalGradients::add(std::size_t place, const at::Tensor& parameter, const at::Tensor& gradient,
                         bool values) {
  auto& [sum, numbers, greatest] = gradients_[place];
  const bool first = !sum.defined() && numbers.sketch.empty() && !greatest.defined();
  if (sum.defined() || (first && kept_ + bytes_of(gradient) <= kMostKept))
    return add_to(sum, gradient);
  if (!values) {
    auto now = greatest_of(gradient.detach());
    greatest = first ? std::move(now) : at::maximum(greatest, now);
  } else if (first) {
    numbers = summarize(gradient);
  } else if (const auto held = held_by(parameter);
             held.defined() && are_alike(held, gradient) && hash_of(held) == numbers.hash) {
    numbers = summarize_sum(held, gradient.detach());
  } else {
    numbers = sum_of(numbers, summarize(gradient));
  }
}

void LocalGradients::add_to(at::Tensor& sum, const at::Tensor& gradient) {
  if (!sum.defined()) {
    sum = gradient.detach().clone();  // .grad may become it, and be reduced in place
  } else {
    kept_ -= bytes_of(sum);
    if (!sum.is_sparse())
      sum.add_(gradient);
    else  // the other order is refused, where one of them is dense
      sum = gradient.is_sparse() ? (sum + gradient).coalesce() : gradient.detach() + sum;
  }
  kept_ += bytes_of(sum);
}

bool LocalGradients::is_not_zero(std::size_t place) const {
  const auto& [sum, numbers, greatest] = gradients_[place];
  if (greatest.defined()) return record::is_not_zero(greatest);
  return sum.defined() ? record::is_not_zero(sum) : numbers.norm != 0;
}

std::vector<trace::Summary> LocalGradients::summaries() const {
  std::vector<trace::Summary> values;
  values.reserve(gradients_.size());
  for (const auto& [sum, numbers, greatest] : gradients_)
    values.push_back(sum.defined()        ? summarize(sum)
                     : greatest.defined() ? known_by(greatest)
                                          : numbers);
  return values;
}

}  // namespace lockstep::record
