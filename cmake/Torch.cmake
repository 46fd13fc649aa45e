# Finds LibTorch and defines lockstep::torch (torch_cpu and c10) and, where it is there,
# lockstep::torch_cuda.
#
# find_package(Torch) is not used: it enables the CUDA language, calls nvcc and links torch_cuda into
# every program, which costs each process 0.15 s and 350 MB at start. A program that uses Gloo needs
# neither.
#
# LibTorch is looked for under CMAKE_PREFIX_PATH: a libtorch folder, or a Python environment's
# site-packages/torch.
find_path(LOCKSTEP_TORCH_INCLUDE torch/csrc/api/include/torch/torch.h
          PATH_SUFFIXES include torch/include
          DOC "LibTorch's include folder")
find_library(LOCKSTEP_TORCH_CPU torch_cpu PATH_SUFFIXES lib torch/lib)
find_library(LOCKSTEP_C10 c10 PATH_SUFFIXES lib torch/lib)
if(NOT LOCKSTEP_TORCH_INCLUDE OR NOT LOCKSTEP_TORCH_CPU OR NOT LOCKSTEP_C10)
  message(FATAL_ERROR
    "LibTorch was not found. Either run ./lockstep doctor, which says what is missing and how to get it, "
    "or name yours: cmake -DCMAKE_PREFIX_PATH=/path/to/libtorch (the folder that holds include/ and lib/).")
endif()
get_filename_component(LOCKSTEP_TORCH_LIB ${LOCKSTEP_TORCH_CPU} DIRECTORY)

# The version macros have moved: to headeronly/ with 2.10, from api/include/ before.
set(LOCKSTEP_TORCH_VERSION unknown)
foreach(_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(NOT LOCKSTEP_TORCH_VERSION STREQUAL "unknown" OR NOT EXISTS ${LOCKSTEP_TORCH_INCLUDE}/${_header})
    continue()
  endif()
  file(READ ${LOCKSTEP_TORCH_INCLUDE}/${_header} _text)
  if(_text MATCHES "TORCH_VERSION_MAJOR ([0-9]+).*TORCH_VERSION_MINOR ([0-9]+).*TORCH_VERSION_PATCH ([0-9]+)")
    set(LOCKSTEP_TORCH_VERSION ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3})
  endif()
endforeach()

add_library(lockstep_torch INTERFACE)
add_library(lockstep::torch ALIAS lockstep_torch)
target_include_directories(lockstep_torch SYSTEM INTERFACE
  ${LOCKSTEP_TORCH_INCLUDE} ${LOCKSTEP_TORCH_INCLUDE}/torch/csrc/api/include)
target_compile_definitions(lockstep_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC)
target_link_libraries(lockstep_torch INTERFACE ${LOCKSTEP_TORCH_CPU} ${LOCKSTEP_C10})
# torch_cpu of a CUDA build needs libraries that its own RPATH finds at run time; the linker need not.
target_link_options(lockstep_torch INTERFACE -Wl,--allow-shlib-undefined)

find_library(LOCKSTEP_TORCH_CUDA torch_cuda PATHS ${LOCKSTEP_TORCH_LIB} NO_DEFAULT_PATH)
find_library(LOCKSTEP_C10_CUDA c10_cuda PATHS ${LOCKSTEP_TORCH_LIB} NO_DEFAULT_PATH)
# The wheel's dependencies hold these headers beside torch; a toolkit holds them in its own place.
get_filename_component(_site ${LOCKSTEP_TORCH_INCLUDE}/../.. ABSOLUTE)
find_path(LOCKSTEP_NCCL_INCLUDE nccl.h HINTS ${_site}/nvidia/nccl/include PATHS /usr/local/cuda/include)
find_path(LOCKSTEP_CUDA_INCLUDE cuda_runtime_api.h HINTS ${_site}/nvidia/cu13/include
          PATHS /usr/local/cuda/include)
set(LOCKSTEP_HAVE_NCCL OFF)
if(LOCKSTEP_NCCL AND LOCKSTEP_TORCH_CUDA AND LOCKSTEP_NCCL_INCLUDE AND LOCKSTEP_CUDA_INCLUDE)
  set(LOCKSTEP_HAVE_NCCL ON)
  add_library(lockstep_torch_cuda INTERFACE)
  add_library(lockstep::torch_cuda ALIAS lockstep_torch_cuda)
  target_include_directories(lockstep_torch_cuda SYSTEM INTERFACE
    ${LOCKSTEP_NCCL_INCLUDE} ${LOCKSTEP_CUDA_INCLUDE})
  target_compile_definitions(lockstep_torch_cuda INTERFACE USE_C10D_NCCL)
  target_link_libraries(lockstep_torch_cuda INTERFACE lockstep::torch ${LOCKSTEP_TORCH_CUDA} ${LOCKSTEP_C10_CUDA})
endif()
message(STATUS "LibTorch ${LOCKSTEP_TORCH_VERSION} in ${LOCKSTEP_TORCH_LIB}; NCCL: ${LOCKSTEP_HAVE_NCCL}")

# The Python beside LibTorch, which the parity tests compare with. A plain libtorch folder has none.
find_program(LOCKSTEP_PYTHON python HINTS ${LOCKSTEP_TORCH_LIB}/../../../../../bin NO_DEFAULT_PATH
             DOC "A Python with the same torch")
