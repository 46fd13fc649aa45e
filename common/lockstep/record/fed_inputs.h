// What training forwards are given.
#pragma once

#include <lockstep/trace/writer.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace lockstep::record {

class FedInputs {
 public:
  // Of a module by its number; 0 is the recorded model. A hash of each sample, up to 2^16 of a module: each row that the
  // tensors hold together, of more than 256 some; those of tensors on a device only where it may wait for that. Then
  // also what the tensors' numbers are like.
  void record(trace::Writer& writer, std::int64_t module, const std::vector<at::Tensor>& inputs,
              bool may_wait);

 private:
  std::map<std::int64_t, std::size_t> looked_at_;  // samples of a module
};

}  // namespace lockstep::record
