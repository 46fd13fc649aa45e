// Communication hooks beside c10d's built-in ones, for DdpEngine::register_comm_hook. Python's
// torch.distributed.algorithms.ddp_comm_hooks.
#pragma once

#include <lockstep/dist/process_group.h>

#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace lockstep {

// Python's bf16_compress_hook, bit for bit: each bucket is cast to bfloat16, divided by the world size, summed over the
// ranks in bfloat16 and cast back, so that half as many bytes go over the network. A gradient keeps 8 significant bits,
// and each addition rounds again. Over Gloo and NCCL; what c10d throws comes out of backward().
std::unique_ptr<c10d::CommHookInterface> bf16_compress_hook(const ProcessGroupPtr& group);

}  // namespace lockstep
