# Kernels, compiled by nvcc: one command for each .cu file, without CMake's CUDA language (which would take nvcc as a
# compiler of the whole project, and CMake 3.25 knows no CUDA C++20). Where nvcc, the runtime or NCCL is missing,
# LOCKSTEP_HAVE_CUDA is OFF: all is built without kernels, and what needs them says so.
#
# The runtime and NCCL are those that LibTorch's wheel brings: they are there without a driver, and find one when they
# are asked for a GPU.
set(LOCKSTEP_HAVE_CUDA OFF)
set(LOCKSTEP_CUDA_ARCHITECTURES 75 80 86 89 90 100)  # and PTX of the last, for those that come after it
find_program(LOCKSTEP_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
find_program(LOCKSTEP_NVCC_HOST_COMPILER g++ DOC "The C++ compiler that nvcc calls")
find_library(LOCKSTEP_CUDART NAMES cudart libcudart.so.13 NAMES_PER_DIR HINTS ${_site}/nvidia/cu13/lib PATHS /usr/local/cuda/lib64)
find_library(LOCKSTEP_NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS ${_site}/nvidia/nccl/lib PATHS /usr/local/cuda/lib64)
if(LOCKSTEP_HAVE_NCCL AND LOCKSTEP_NVCC AND LOCKSTEP_NVCC_HOST_COMPILER AND LOCKSTEP_CUDART AND LOCKSTEP_NCCL_LIBRARY)
  set(LOCKSTEP_HAVE_CUDA ON)
endif()
message(STATUS "CUDA kernels: ${LOCKSTEP_HAVE_CUDA} (${LOCKSTEP_NVCC})")

# compile_kernels(VARIABLE x.cu ...): the object files, for every architecture.
function(compile_kernels variable)
  foreach(architecture IN LISTS LOCKSTEP_CUDA_ARCHITECTURES)
    list(APPEND code -gencode=arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET LOCKSTEP_CUDA_ARCHITECTURES -1 newest)
  list(APPEND code -gencode=arch=compute_${newest},code=compute_${newest})
  foreach(source IN LISTS ARGN)
    cmake_path(GET source STEM stem)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${stem}.cu.o)
    add_custom_command(OUTPUT ${object} DEPFILE ${object}.d DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} VERBATIM
      COMMAND ${LOCKSTEP_NVCC} -c -O3 -std=c++20 ${code} -ccbin ${LOCKSTEP_NVCC_HOST_COMPILER} --threads 2
        -Xcompiler=-fPIC,-Wall,-Wextra --expt-relaxed-constexpr
        -I ${PROJECT_SOURCE_DIR}/common -isystem ${LOCKSTEP_NCCL_INCLUDE}
        -MD -MF ${object}.d -o ${object} ${CMAKE_CURRENT_SOURCE_DIR}/${source}
      COMMENT "nvcc ${source}")
    list(APPEND objects ${object})
  endforeach()
  set(${variable} ${objects} PARENT_SCOPE)
endfunction()
