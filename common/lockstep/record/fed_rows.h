// Which samples a training forward is given.
#pragma once

#include <lockstep/trace/writer.h>
#include <torch/torch.h>

#include <cstddef>
#include <vector>

namespace lockstep::record {

// Records a hash of each sample, up to 2^16 of them: each row that the tensors hold together.
class FedRows {
 public:
  // Those of tensors on a device only where it may wait for that.
  void record(trace::Writer& writer, const std::vector<at::Tensor>& inputs, bool may_wait);

 private:
  std::size_t recorded_ = 0;
};

}  // namespace lockstep::record
