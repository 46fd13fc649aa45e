#include <lockstep/gpu/kernels/check.h>

namespace lockstep::gpu {
namespace {

// CUDA's own texts say what is wrong, and seldom what to do.
std::string what_to_do(cudaError_t code) {
  switch (code) {
    case cudaErrorMemoryAllocation:
      return "; the GPU's memory is full: look with nvidia-smi who uses it";
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      return "; ./lockstep doctor says what this machine's driver can do";
    case cudaErrorInvalidDevice:
      return "; is LOCAL_RANK beyond what CUDA_VISIBLE_DEVICES shows?";
    case cudaErrorNoKernelImageForDevice:
      return "; build for this GPU: it is older than sm_75";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
      return "; an earlier kernel failed: CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer says which";
    default:
      return "";
  }
}

}  // namespace

CudaError::CudaError(const std::string& call, cudaError_t error)
    : Error(call + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")" +
            what_to_do(error)),
      code(error) {}

NcclError::NcclError(const std::string& call, ncclResult_t error)
    : Error(call + ": " + ncclGetErrorString(error) +
            "; NCCL_DEBUG=WARN says where in NCCL, NCCL_DEBUG=INFO how it came there"),
      code(error) {}

void check(cudaError_t code, const std::string& call) {
  if (code != cudaSuccess) throw CudaError(call, code);
}

void check(ncclResult_t code, const std::string& call) {
  if (code != ncclSuccess) throw NcclError(call, code);
}

}  // namespace lockstep::gpu
