# Kernels, compiled by nvcc: one command for each .cu file, without CMake's CUDA language (which would take nvcc as a
# compiler of the whole project, and CMake 3.25 knows no CUDA C++20). Where nvcc, the runtime or NCCL is missing, or
# nvcc does not fit, LOCKSTEP_HAVE_CUDA is OFF: all is built without kernels, and what needs them says so.
#
# The runtime and NCCL are those that LibTorch's wheel brings: they are there without a driver, and find one when they
# are asked for a GPU.
set(LOCKSTEP_CUDA_ARCHITECTURES 75 80 86 89 90 100)  # and PTX of the last, for those that come after it
set(_oldest_nvcc 12.8)  # the first with sm_100; C++20 came before
find_program(LOCKSTEP_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
find_program(LOCKSTEP_NVCC_HOST_COMPILER g++ DOC "The C++ compiler that nvcc calls")
# The runtime beside its header, and of its version.
set(_cudart_version 0)
if(LOCKSTEP_CUDA_INCLUDE)
  file(STRINGS ${LOCKSTEP_CUDA_INCLUDE}/cuda_runtime_api.h _line REGEX "#define CUDART_VERSION +[0-9]+" LIMIT_COUNT 1)
  string(REGEX MATCH "[0-9]+" _cudart_version "${_line}")
endif()
math(EXPR _cudart_major "${_cudart_version} / 1000")
find_library(LOCKSTEP_CUDART NAMES cudart libcudart.so.${_cudart_major} NAMES_PER_DIR
             HINTS ${LOCKSTEP_CUDA_INCLUDE}/../lib ${LOCKSTEP_CUDA_INCLUDE}/../lib64 PATHS /usr/local/cuda/lib64)
find_library(LOCKSTEP_NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS ${_site}/nvidia/nccl/lib PATHS /usr/local/cuda/lib64)

# What keeps kernels from being built; empty: nothing.
function(why_no_kernels variable)
  set(why "")
  foreach(part LOCKSTEP_HAVE_NCCL LOCKSTEP_NVCC LOCKSTEP_NVCC_HOST_COMPILER LOCKSTEP_CUDART LOCKSTEP_NCCL_LIBRARY)
    if(NOT ${part})
      list(APPEND why "${part} is ${${part}}")
    endif()
  endforeach()
  if(NOT why)
    execute_process(COMMAND ${LOCKSTEP_NVCC} --version OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE code)
    if(NOT code EQUAL 0 OR NOT said MATCHES "release ([0-9]+)\\.([0-9]+)")
      list(APPEND why "${LOCKSTEP_NVCC} --version names no release")
    elseif("${CMAKE_MATCH_1}.${CMAKE_MATCH_2}" VERSION_LESS _oldest_nvcc)
      list(APPEND why "${LOCKSTEP_NVCC} is ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}, and ${_oldest_nvcc} or newer is needed (name it: -DLOCKSTEP_NVCC=FILE)")
    elseif(NOT CMAKE_MATCH_1 EQUAL _cudart_major)
      list(APPEND why
        "${LOCKSTEP_NVCC} is of CUDA ${CMAKE_MATCH_1}, and ${LOCKSTEP_CUDA_INCLUDE} of CUDA ${_cudart_major} (name an nvcc of that: -DLOCKSTEP_NVCC=FILE)")
    endif()
  endif()
  list(JOIN why ", " why)
  set(${variable} "${why}" PARENT_SCOPE)
endfunction()
why_no_kernels(_why)
if(_why)
  set(LOCKSTEP_HAVE_CUDA OFF)
  message(STATUS "CUDA kernels: OFF (${_why})")
else()
  set(LOCKSTEP_HAVE_CUDA ON)
  message(STATUS "CUDA kernels: ON (${LOCKSTEP_NVCC})")
endif()

# The way to `path` from the folder that nvcc runs in; either may be reached through a link.
function(relative_to_here variable path)
  file(REAL_PATH ${path} path)
  file(REAL_PATH ${CMAKE_CURRENT_BINARY_DIR} here)
  file(RELATIVE_PATH way ${here} ${path})
  set(${variable} ${way} PARENT_SCOPE)
endfunction()

# compile_kernels(VARIABLE x.cu ...): the object files, for every architecture.
function(compile_kernels variable)
  foreach(architecture IN LISTS LOCKSTEP_CUDA_ARCHITECTURES)
    list(APPEND code -gencode=arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET LOCKSTEP_CUDA_ARCHITECTURES -1 newest)
  list(APPEND code -gencode=arch=compute_${newest},code=compute_${newest})
  # nvcc hands paths to a shell: one with a quote in it arrives torn, a relative one is whole wherever the clone lies.
  # With --threads it does not find its temporary files where TMPDIR has a space: they lie beside the object.
  relative_to_here(from ${CMAKE_CURRENT_SOURCE_DIR})
  relative_to_here(common ${PROJECT_SOURCE_DIR}/common)
  relative_to_here(nccl ${LOCKSTEP_NCCL_INCLUDE})
  foreach(source IN LISTS ARGN)
    cmake_path(GET source STEM stem)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${stem}.cu.o)
    add_custom_command(OUTPUT ${object} DEPFILE ${stem}.cu.o.d DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} VERBATIM
      COMMAND ${CMAKE_COMMAND} -E env TMPDIR=. ${LOCKSTEP_NVCC} -c -O3 -std=c++20 ${code} -ccbin ${LOCKSTEP_NVCC_HOST_COMPILER} --threads 2
        -Xcompiler=-fPIC,-Wall,-Wextra --expt-relaxed-constexpr -I ${common} -isystem ${nccl}
        -MD -MF ${stem}.cu.o.d -o ${stem}.cu.o ${from}/${source}
      COMMENT "nvcc ${source}")
    list(APPEND objects ${object})
  endforeach()
  set(${variable} ${objects} PARENT_SCOPE)
endfunction()
