# What pip builds: the few sources of Lockstep that the extension needs, and nothing else.
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(COMMAND ${Python_EXECUTABLE} -c "import torch; print(torch.__path__[0], torch.__version__, sep=';')"
  OUTPUT_VARIABLE _torch OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _failed)
if(_failed)
  message(FATAL_ERROR "${Python_EXECUTABLE} has no torch. Install the torch that your job runs on, then: "
    "pip install --no-build-isolation ./python")
endif()
list(GET _torch 0 _torch_folder)
list(GET _torch 1 LOCKSTEP_TORCH_VERSION)
include(${CMAKE_CURRENT_SOURCE_DIR}/../cmake/SharedLibstdcxx.cmake)

# Of libraries that are headers. Where the system has none, it is that of a package, whose sources or wheel pip downloads.
function(find_header result header package kind folder)
  find_path(${result} ${header})
  if(${result})
    return()
  endif()
  set(_into ${CMAKE_CURRENT_BINARY_DIR}/headers/${package})
  execute_process(COMMAND ${Python_EXECUTABLE} -m pip download --quiet --no-deps ${kind} :all: --dest ${_into} ${package}
    RESULT_VARIABLE _failed)
  file(GLOB _archive ${_into}/*.tar.gz ${_into}/*.whl)
  if(_failed OR NOT _archive)
    message(FATAL_ERROR "${header} is not here, and pip could not download the package ${package}")
  endif()
  file(ARCHIVE_EXTRACT INPUT ${_archive} DESTINATION ${_into})
  find_path(${result} ${header} PATHS ${_into}/${folder} NO_DEFAULT_PATH REQUIRED)
endfunction()
find_header(XXHASH_INCLUDE xxhash.h xxhash==3.5.0 --no-binary xxhash-3.5.0/deps/xxhash)
find_header(JSON_INCLUDE nlohmann/json.hpp nlohmann-json==3.12.0 --only-binary nlohmann_json/include)

set(_lockstep ${CMAKE_CURRENT_SOURCE_DIR}/../common/lockstep)
file(GLOB _whole CONFIGURE_DEPENDS ${_lockstep}/compare/*.cpp ${_lockstep}/diagnose/*.cpp ${_lockstep}/trace/*.cpp)
include(${_lockstep}/diagnose/AllDetectors.cmake)
include(${_lockstep}/record/Recorder.cmake)
set(_torch_free base/clock.cpp base/environment.cpp base/error.cpp base/file.cpp base/hash.cpp base/processors.cpp
  base/say.cpp base/text.cpp launch/placement.cpp report/page.cpp report/finding.cpp report/job.cpp report/json.cpp
  report/pictures.cpp report/places.cpp report/stall.cpp)
list(TRANSFORM _torch_free PREPEND ${_lockstep}/)

# The build is what a user waits for: what is called for each value is optimized, the rest is compiled fast.
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")
set_source_files_properties(${_lockstep}/base/hash.cpp ${_lockstep}/record/sketch.cpp PROPERTIES COMPILE_OPTIONS -O3
  SKIP_PRECOMPILE_HEADERS ON)

add_library(torch_free OBJECT ${_torch_free} ${_whole} ${LOCKSTEP_DETECTORS})
target_include_directories(torch_free PRIVATE ${_lockstep}/.. ${XXHASH_INCLUDE} ${JSON_INCLUDE})
target_precompile_headers(torch_free PRIVATE <algorithm> <functional> <map> <set> <sstream> <lockstep/diagnose/detector.h>)

Python_add_library(_extension MODULE WITH_SOABI src/extension.cpp src/stacks.cpp src/stand_ins.cpp src/values.cpp
  ${_lockstep}/observe/backward_hook.cpp ${_lockstep}/observe/observer.cpp ${LOCKSTEP_RECORDER})
target_include_directories(_extension SYSTEM PRIVATE ${_torch_folder}/include
  ${_torch_folder}/include/torch/csrc/api/include ${XXHASH_INCLUDE})
target_include_directories(_extension PRIVATE ${_lockstep}/..)
target_precompile_headers(_extension PRIVATE <torch/extension.h> <torch/csrc/distributed/c10d/Backend.hpp>)
set_target_properties(_extension PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 7)
target_compile_definitions(_extension PRIVATE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_directories(_extension PRIVATE ${_torch_folder}/lib)
target_link_libraries(_extension PRIVATE torch_free torch_python torch torch_cpu c10)

foreach(_target torch_free _extension)
  target_compile_features(${_target} PRIVATE cxx_std_20)
  target_compile_options(${_target} PRIVATE -fvisibility=hidden)
  set_target_properties(${_target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endforeach()
# A source that is missing above is an error here, and not where somebody's job is to be recorded.
add_custom_command(TARGET _extension POST_BUILD VERBATIM
  COMMAND ${Python_EXECUTABLE} -c "import sys, torch; sys.path.insert(0, sys.argv[1]); import _extension" $<TARGET_FILE_DIR:_extension>)
# Read before the extension is loaded, which another torch could not do.
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/built_for.py "TORCH_VERSION = \"${LOCKSTEP_TORCH_VERSION}\"\n")
install(TARGETS _extension DESTINATION lockstep_torch)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/built_for.py DESTINATION lockstep_torch)
# What makes a job's page, and what the pages of findings say.
set(_root ${CMAKE_CURRENT_SOURCE_DIR}/..)
install(DIRECTORY ${_root}/reports/html DESTINATION lockstep_torch PATTERN __pycache__ EXCLUDE)
install(FILES ${_root}/docs/findings.md DESTINATION lockstep_torch)
install(DIRECTORY ${_root}/lessons DESTINATION lockstep_torch FILES_MATCHING PATTERN "pitfalls/*.md")
