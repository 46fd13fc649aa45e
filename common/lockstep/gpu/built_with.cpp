#include <lockstep/gpu/require_nccl.h>

#ifdef LOCKSTEP_HAVE_NCCL
#include <cuda_runtime_api.h>
#include <nccl.h>
#endif

namespace lockstep::gpu {

BuiltWith built_with() {
#ifdef LOCKSTEP_HAVE_NCCL
  return {.nccl = NCCL_VERSION_CODE, .cuda = CUDART_VERSION};
#else
  return {};
#endif
}

}  // namespace lockstep::gpu
