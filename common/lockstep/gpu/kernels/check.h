// Errors of the CUDA runtime and of NCCL as exceptions.
#pragma once

#include <cuda_runtime_api.h>
#include <lockstep/base/error.h>
#include <nccl.h>

#include <string>

namespace lockstep::gpu {

// A call of the runtime failed, or (CUDA tells so at the next call, whichever it is) work that was given to the GPU
// before. what() holds the call, CUDA's text, and what to do.
class CudaError : public Error {
 public:
  CudaError(const std::string& call, cudaError_t code);
  cudaError_t code;
};

class NcclError : public Error {
 public:
  NcclError(const std::string& call, ncclResult_t code);
  ncclResult_t code;
};

// Throw for all but success (ncclInProgress, too); `call` names what was called.
void check(cudaError_t code, const std::string& call);
void check(ncclResult_t code, const std::string& call);

}  // namespace lockstep::gpu
