// What training forwards are given.
#pragma once

#include <lockstep/trace/writer.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace lockstep::record {

// A hash of each row that the tensors hold together: of more than 256 some, those that each other forward of as many rows
// has, too. Empty where they have no rows; of tensors on a device only where it may wait for that.
std::vector<std::int64_t> some_rows(const std::vector<at::Tensor>& inputs, bool may_wait);

class FedInputs {
 public:
  // Of a module by its number; 0 is the recorded model. some_rows(), up to 2^16 of a module, and where it may wait what
  // the tensors' numbers are like.
  void record(trace::Writer& writer, std::int64_t module, const std::vector<at::Tensor>& inputs,
              bool may_wait);

 private:
  std::map<std::int64_t, std::size_t> looked_at_;  // samples of a module
};

}  // namespace lockstep::record
