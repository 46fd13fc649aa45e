// What the backwards of this rank have produced for each parameter since the last update, before any reduction: the sums.
//
// kMostKept bytes of them are tensors: those that come first. Of the others nothing is copied. A gradient becomes numbers
// as it comes; to a second one what .grad holds is added, where these are the gradients before it. Where .grad was reduced
// meanwhile, or another thread writes it, the sum of the two is known by its projections alone.
#pragma once

#include <lockstep/trace/event.h>
#include <torch/torch.h>

#include <cstddef>
#include <vector>

namespace lockstep::record {

class LocalGradients {
 public:
  static constexpr std::size_t kMostKept = std::size_t{16} << 20;

  void assign(std::size_t parameters);  // none has a gradient
  // The parameter at this place gets a gradient, which .grad does not hold yet. Where nobody asks for `values` in this
  // step, no device is waited for: of what is no tensor here the norm is then the greatest number, and the sketch NaN.
  void add(std::size_t place, const at::Tensor& parameter, const at::Tensor& gradient, bool values);
  bool is_not_zero(std::size_t place) const;
  void forget(std::size_t place);
  void forget();
  std::vector<trace::Summary> summaries() const;

 private:
  struct Gradient {
    at::Tensor sum;          // undefined: none, or in numbers
    trace::Summary numbers;  // without a sketch: none
    at::Tensor greatest;     // number of all, where nobody asks for values
  };
  void add_to(at::Tensor& sum, const at::Tensor& gradient);

  std::vector<Gradient> gradients_;
  std::size_t kept_ = 0;  // bytes
};

}  // namespace lockstep::record
