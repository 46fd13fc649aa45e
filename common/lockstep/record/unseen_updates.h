// Updates by an optimizer that does not tell, or by a rule of the program's own.
#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/trace/event.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::record {

// An update changes parameters in place. Where it goes through their data(), as torch's optimizers do, their versions stay
// as they are: so some numbers of each are looked at, too, in the host's memory.
class UnseenUpdates {
 public:
  struct Noted {
    at::Tensor parameter;
    trace::Summary before;    // where it was to be kept
    std::uint64_t looks = 0;  // of its version and some numbers
  };

  // The parameters that a backward is about to give gradients to, unless they are noted already.
  void note(const std::vector<at::Tensor>& parameters, bool keeps_values);
  // Those that were changed since, in the order in which they were noted.
  std::vector<Noted> changed() const;
  bool all_changed() const;
  void forget() { noted_.clear(); }

 private:
  std::vector<Noted> noted_;
};

}  // namespace lockstep::record
