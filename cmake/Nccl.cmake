# Where LibTorch has CUDA and the headers are there: lockstep::torch_cuda, which only lockstep_nccl links.
set(LOCKSTEP_HAVE_NCCL OFF)
find_library(LOCKSTEP_TORCH_CUDA torch_cuda PATHS ${LOCKSTEP_TORCH_LIB} NO_DEFAULT_PATH)
find_library(LOCKSTEP_C10_CUDA c10_cuda PATHS ${LOCKSTEP_TORCH_LIB} NO_DEFAULT_PATH)
# The wheel's dependencies hold these headers beside torch (those of CUDA 13 in one place, of CUDA 12 in another); a
# toolkit, which may be of another CUDA than torch, holds them in its own place.
get_filename_component(_site ${LOCKSTEP_TORCH_INCLUDE}/../.. ABSOLUTE)
find_path(LOCKSTEP_NCCL_INCLUDE nccl.h HINTS ${_site}/nvidia/nccl/include PATHS /usr/local/cuda/include)
find_path(LOCKSTEP_CUDA_INCLUDE cuda_runtime_api.h
          HINTS ${_site}/nvidia/cu13/include ${_site}/nvidia/cuda_runtime/include PATHS /usr/local/cuda/include)
# What these headers include lies in wheels of its own with CUDA 13 (requirements.txt names them), and in a toolkit.
find_path(LOCKSTEP_CUDA_CRT_INCLUDE crt/host_config.h HINTS ${LOCKSTEP_CUDA_INCLUDE} PATHS /usr/local/cuda/include)
find_path(LOCKSTEP_CUDA_CCCL_INCLUDE nv/target
          HINTS ${LOCKSTEP_CUDA_INCLUDE} ${LOCKSTEP_CUDA_INCLUDE}/cccl PATHS /usr/local/cuda/include /usr/local/cuda/include/cccl)
set(LOCKSTEP_CUDA_INCLUDES ${LOCKSTEP_CUDA_INCLUDE} ${LOCKSTEP_CUDA_CRT_INCLUDE} ${LOCKSTEP_CUDA_CCCL_INCLUDE})
list(REMOVE_DUPLICATES LOCKSTEP_CUDA_INCLUDES)
if(LOCKSTEP_NCCL AND LOCKSTEP_TORCH_CUDA AND LOCKSTEP_NCCL_INCLUDE AND LOCKSTEP_CUDA_INCLUDE AND LOCKSTEP_CUDA_CRT_INCLUDE
   AND LOCKSTEP_CUDA_CCCL_INCLUDE)
  set(LOCKSTEP_HAVE_NCCL ON)
  add_library(lockstep_torch_cuda INTERFACE)
  add_library(lockstep::torch_cuda ALIAS lockstep_torch_cuda)
  target_include_directories(lockstep_torch_cuda SYSTEM INTERFACE
    ${LOCKSTEP_NCCL_INCLUDE} ${LOCKSTEP_CUDA_INCLUDES})
  target_compile_definitions(lockstep_torch_cuda INTERFACE USE_C10D_NCCL)
  target_link_libraries(lockstep_torch_cuda INTERFACE lockstep::torch ${LOCKSTEP_TORCH_CUDA} ${LOCKSTEP_C10_CUDA})
endif()
message(STATUS "LibTorch ${LOCKSTEP_TORCH_VERSION} in ${LOCKSTEP_TORCH_LIB}; NCCL: ${LOCKSTEP_HAVE_NCCL}")
