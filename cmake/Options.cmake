# What a user can switch, and the settings every target shares.
option(LOCKSTEP_WERROR "Treat compiler warnings as errors (CI does)" OFF)
option(LOCKSTEP_NCCL "Build the NCCL library; needs torch_cuda, nccl.h and the CUDA headers" ON)
# It takes a third of the compilers' time where the files include torch. OFF compiles each file by itself, so that an edit
# compiles one file again and not eight.
option(LOCKSTEP_UNITY "Compile up to eight files of a library, a test or a benchmark together" ON)
option(LOCKSTEP_FUZZ "Build the fuzzers; needs clang" OFF)
# Inside another project only the libraries are built, unless it asks for more.
option(LOCKSTEP_LESSONS "Build the lessons" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_BENCHMARKS "Build the benchmark programs" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_INSTALL "cmake --install puts down the libraries" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_TORCH "Build what is on LibTorch; OFF leaves the program behind ./lockstep" ON)
set(LOCKSTEP_SANITIZE "" CACHE STRING "Sanitizers for every target, for example address,undefined")

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug, RelWithDebInfo" FORCE)
endif()
# Release without NDEBUG: an assertion that never runs protects nobody.
set(LOCKSTEP_OPTIMIZE -O2 CACHE STRING "How libraries are optimized in Release; lessons and tests are not")
set(CMAKE_CXX_FLAGS_RELEASE "${LOCKSTEP_OPTIMIZE}")
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
# The same for libraries and programs (CMake would say -fPIC here and -fPIE there), so that they can share
# one precompiled header.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # A precompiled header needs these two to be cacheable.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_PCH_EXTSUM=1 ${CCACHE})
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Without a time stamp in it, a rebuilt but equal precompiled header leaves its users cached.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
endif()
find_program(LLD NAMES ld.lld)
if(LLD)
  add_link_options(-fuse-ld=lld)
endif()
if(LOCKSTEP_SANITIZE)
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
endif()
