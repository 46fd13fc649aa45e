// What Probes record of parameters: those of the model after each update and before the next one, and others that the
// training uses.
#pragma once

#include <lockstep/observe/parameters_of.h>
#include <lockstep/trace/writer.h>
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::record {

// One summary each; none of what is not readable.
std::vector<trace::Summary> summarize_all(const std::vector<at::Tensor>& tensors);

// Defined, and not all zeros.
bool is_not_zero(const at::Tensor& gradient);

std::vector<at::Tensor> alive(c10::ArrayRef<WeakTensor> tensors);

// By identity.
std::optional<std::size_t> place_of(const at::Tensor& tensor, c10::ArrayRef<at::Tensor> tensors);
bool is_among(const at::Tensor& tensor, c10::ArrayRef<at::Tensor> tensors);
bool is_among(const at::Tensor& tensor, c10::ArrayRef<WeakTensor> tensors);

class HeldParameters {
 public:
  void record(trace::Writer& writer, const std::vector<at::Tensor>& parameters);
  // Whether the parameters are to be recorded now, as the last update left them: a collective begins that may make the
  // replicas equal, as a mean of the parameters does. Of each kind of call three times, and then at growing distances.
  bool wanted_before(const trace::Collective& call, std::int64_t step,
                     const std::vector<at::Tensor>& parameters);
  // Where they were recorded after the last update: whether anything has changed them since. Once a step.
  void record_before_update(trace::Writer& writer, const std::vector<at::Tensor>& parameters);
  void forget() { last_.reset(); }  // the model has other parameters now

  // Each parameter of a holder once, for as long as the program keeps it.
  void add_outside(const std::string& holder, const std::string& name, const at::Tensor& parameter);
  void remove_outside(const std::vector<at::Tensor>& parameters);
  // Of all holders, or of one.
  void record_outside(trace::Writer& writer, const std::string& of = "");

 private:
  struct Outside {
    std::vector<std::string> names;
    std::vector<WeakTensor> parameters;
  };
  void erase_outside(c10::function_ref<bool(const at::Tensor&)> goes);
  std::map<std::string, Outside> outside_;  // by holder
  bool are_known(std::int64_t step) const { return last_ && last_->first + 1 == step; }
  std::optional<std::pair<std::int64_t, std::vector<trace::Summary>>> last_;  // and their step
  std::map<std::string, std::uint64_t> calls_;  // how often each kind was seen
  std::int64_t told_ = -1;                      // the step of the last BeforeUpdate
};

}  // namespace lockstep::record
