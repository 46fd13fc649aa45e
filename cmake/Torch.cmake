# Finds LibTorch and defines lockstep::torch (torch_cpu and c10). Where there is none, it defines nothing and
# sets LOCKSTEP_TORCH_MISSING to what a person is to be told. Used by this project and, installed beside
# LockstepConfig.cmake, by find_package(Lockstep).
#
# find_package(Torch) is not used: it enables the CUDA language, calls nvcc and links torch_cuda into
# every program, which costs each process 0.15 s and 350 MB at start. A program that uses Gloo needs
# neither.
#
# LibTorch is looked for under CMAKE_PREFIX_PATH: a libtorch folder, a Python environment's
# site-packages/torch, or what torch.utils.cmake_prefix_path says (share/cmake in that).
find_path(LOCKSTEP_TORCH_INCLUDE torch/csrc/api/include/torch/torch.h
          PATH_SUFFIXES include torch/include ../../include
          DOC "LibTorch's include folder")
find_library(LOCKSTEP_TORCH_CPU torch_cpu PATH_SUFFIXES lib torch/lib ../../lib)
find_library(LOCKSTEP_C10 c10 PATH_SUFFIXES lib torch/lib ../../lib)
if(NOT LOCKSTEP_TORCH_INCLUDE OR NOT LOCKSTEP_TORCH_CPU OR NOT LOCKSTEP_C10)
  string(CONCAT LOCKSTEP_TORCH_MISSING
    "LibTorch was not found. Name yours: cmake -DCMAKE_PREFIX_PATH=/path/to/libtorch (the folder that holds "
    "include/ and lib/; in a Python environment it is site-packages/torch).")
  return()
endif()
set(LOCKSTEP_TORCH_MISSING "")
cmake_path(NORMAL_PATH LOCKSTEP_TORCH_INCLUDE)
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

if(NOT TARGET lockstep::torch)
  add_library(lockstep::torch INTERFACE IMPORTED)
  target_include_directories(lockstep::torch SYSTEM INTERFACE
    ${LOCKSTEP_TORCH_INCLUDE} ${LOCKSTEP_TORCH_INCLUDE}/torch/csrc/api/include)
  target_compile_definitions(lockstep::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC)
  target_link_libraries(lockstep::torch INTERFACE ${LOCKSTEP_TORCH_CPU} ${LOCKSTEP_C10})
  # torch_cpu of a CUDA build needs libraries that its own RPATH finds at run time; the linker need not.
  target_link_options(lockstep::torch INTERFACE -Wl,--allow-shlib-undefined)
endif()
