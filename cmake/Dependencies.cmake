# The libraries beside LibTorch. CONTRIBUTING.md says why each one.
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)                 # Fashion-MNIST's gzipped files
find_package(nlohmann_json 3.11 REQUIRED)   # reports, schemas, JSON export
find_package(CLI11 2 REQUIRED)              # command lines
find_path(XXHASH_INCLUDE xxhash.h REQUIRED) # content hashes (used header-only)
# Debian's libdeflate 1.14 brings no CMake package.
find_path(LIBDEFLATE_INCLUDE libdeflate.h REQUIRED)
find_library(LIBDEFLATE_LIBRARY deflate REQUIRED)
add_library(lockstep::libdeflate INTERFACE IMPORTED)   # checksums of checkpoint records, at memory speed
set_target_properties(lockstep::libdeflate PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES ${LIBDEFLATE_INCLUDE} INTERFACE_LINK_LIBRARIES ${LIBDEFLATE_LIBRARY})
if(BUILD_TESTING)
  find_package(GTest 1.12 REQUIRED)
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
