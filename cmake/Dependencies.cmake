# The libraries beside LibTorch. CONTRIBUTING.md says why each one.
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)                 # Fashion-MNIST's gzipped files
find_package(nlohmann_json 3.11 REQUIRED)   # reports, schemas, JSON export
find_package(CLI11 2 REQUIRED)              # command lines
find_package(fmt 9 REQUIRED)                # messages (used header-only)
find_path(XXHASH_INCLUDE xxhash.h REQUIRED) # content hashes (used header-only)
find_package(Libdeflate REQUIRED)           # checksums of checkpoint records, at memory speed
if(NOT LOCKSTEP_TORCH)
  return()
endif()
if(BUILD_TESTING)
  find_package(GTest 1.12 REQUIRED)
  find_package(Python3 COMPONENTS Interpreter)  # scripts that need no torch
endif()

# ProcessGroupGloo.hpp includes gloo's headers, and the wheel ships none. Debian's libgloo-dev has them;
# elsewhere name a folder. Headers only: gloo itself is inside torch_cpu, and linking a second one would
# give two copies with different layouts.
find_path(LOCKSTEP_GLOO_INCLUDE gloo/algorithm.h
          HINTS ${CMAKE_CURRENT_SOURCE_DIR}/.lockstep/gloo/include DOC "Folder that holds gloo's headers")
if(NOT LOCKSTEP_GLOO_INCLUDE)
  message(FATAL_ERROR
    "gloo's headers were not found. Install libgloo-dev, or name the folder that holds gloo/: "
    "cmake -DLOCKSTEP_GLOO_INCLUDE=/path/to/include.")
endif()

# The Python beside LibTorch, which the parity tests compare with. A plain libtorch folder has none.
find_program(LOCKSTEP_PYTHON python HINTS ${LOCKSTEP_TORCH_LIB}/../../../../../bin NO_DEFAULT_PATH
             DOC "A Python with the same torch")
