# The kinds of target this project has: a library folder, a lesson, a test.

set(LOCKSTEP_WARNINGS -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
if(LOCKSTEP_WERROR)
  list(APPEND LOCKSTEP_WARNINGS -Werror)
endif()

# What is not worth an optimizer's time, which is a third of a compilation and more: lessons, tests, and programs that
# wait for others. What takes long in a training is in LibTorch and in our libraries.
set(LOCKSTEP_UNOPTIMIZED -O0)

# _add_precompiled(NAME [LIBRARIES ...] [HEADERS <x.h> ...] [OPTIONS ...])
# A precompiled header that targets of one kind reuse: LOCKSTEP_PLAIN_HEADERS, then HEADERS.
function(_add_precompiled name)
  cmake_parse_arguments(ARG "" "" "LIBRARIES;HEADERS;OPTIONS" ${ARGN})
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch.cpp)
  target_precompile_headers(${name} PRIVATE ${LOCKSTEP_PLAIN_HEADERS} ${ARG_HEADERS})
  target_link_libraries(${name} PRIVATE nlohmann_json::nlohmann_json ${ARG_LIBRARIES})
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_compile_options(${name} PRIVATE ${LOCKSTEP_WARNINGS} ${ARG_OPTIONS})
endfunction()

# Everything that includes torch: 30 s once, against 20 s a file without. What does not: 2 s, against 1 s a file. What is
# not optimized has its own, with GoogleTest in it where tests are built.
set(LOCKSTEP_PLAIN_HEADERS <algorithm> <array> <chrono> <filesystem> <fstream> <functional> <iostream> <map> <memory>
  <nlohmann/json.hpp> <numeric> <optional> <set> <sstream> <string> <variant> <vector>)
_add_precompiled(lockstep_plain_pch)
if(LOCKSTEP_TORCH)
  set(_torch_header ${CMAKE_CURRENT_LIST_DIR}/torch_pch.h)
  _add_precompiled(lockstep_pch LIBRARIES lockstep::torch HEADERS ${_torch_header})
  if(BUILD_TESTING)
    set(_test_libraries GTest::gtest GTest::gmock)
    set(_test_headers <gmock/gmock.h> <gtest/gtest.h>)
    _add_precompiled(lockstep_test_pch LIBRARIES ${_test_libraries} HEADERS ${_test_headers} OPTIONS ${LOCKSTEP_UNOPTIMIZED})
  endif()
  _add_precompiled(lockstep_unoptimized_pch LIBRARIES lockstep::torch ${_test_libraries}
    HEADERS ${_torch_header} ${_test_headers} OPTIONS ${LOCKSTEP_UNOPTIMIZED})
endif()

# _lockstep_settings(TARGET USES_TORCH [PRECOMPILED]): with another precompiled header than the usual one, or with OWN.
function(_lockstep_settings target uses_torch)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/common> $<INSTALL_INTERFACE:include>)
  target_compile_options(${target} PRIVATE ${LOCKSTEP_WARNINGS})
  set_target_properties(${target} PROPERTIES UNITY_BUILD "${LOCKSTEP_UNITY}")
  set(precompiled lockstep_plain_pch)
  if(uses_torch)
    target_link_libraries(${target} PUBLIC lockstep::torch)
    set(precompiled lockstep_pch)
  endif()
  if(ARGN)
    set(precompiled ${ARGN})
  endif()
  if(NOT precompiled STREQUAL OWN)
    target_precompile_headers(${target} REUSE_FROM ${precompiled})
  endif()
endfunction()

# The same of a target that uses torch and is not optimized.
function(_unoptimized_settings target)
  _lockstep_settings(${target} TRUE lockstep_unoptimized_pch)
  target_compile_options(${target} PRIVATE ${LOCKSTEP_UNOPTIMIZED})
  if(LLD)
    target_link_options(${target} PRIVATE LINKER:--version-script=${CMAKE_CURRENT_FUNCTION_LIST_DIR}/own_std.map)
  endif()
  if(BUILD_TESTING)
    # As GoogleTest's users have it: g++ takes a precompiled header only where it would find and define the same.
    target_include_directories(${target} SYSTEM PRIVATE $<TARGET_PROPERTY:GTest::gmock,INTERFACE_INCLUDE_DIRECTORIES>)
    target_compile_definitions(${target} PRIVATE $<TARGET_PROPERTY:GTest::gmock,INTERFACE_COMPILE_DEFINITIONS>)
    target_compile_options(${target} PRIVATE $<TARGET_PROPERTY:GTest::gmock,INTERFACE_COMPILE_OPTIONS>)
  endif()
endfunction()

# _link_first(TARGET lockstep::x ...): the linker reads the libraries before the target's own files. Of equal functions of
# the standard library it keeps the first, and the libraries' are optimized where the target's are not.
function(_link_first target)
  foreach(library IN LISTS ARGN)
    if(library MATCHES "^lockstep::(.+)")
      target_link_options(${target} PRIVATE "LINKER:--whole-archive,$<TARGET_FILE:lockstep_${CMAKE_MATCH_1}>,--no-whole-archive")
    endif()
  endforeach()
endfunction()

# add_lockstep_library(NAME [TORCH [UNOPTIMIZED]] [SOURCES ...] [EXCEPT ...] [DEPENDS lockstep::x ...] [PRIVATE ...]
#                      [HEADERS ...] [PRECOMPILED <x> ...])
# The static library lockstep_NAME, alias lockstep::NAME, of SOURCES and, but for EXCEPT, those of the folder NAME beside the
# calling CMakeLists.txt, where there is one. HEADERS are header-only libraries that its sources include: who links the
# installed library does not need them. PRECOMPILED are headers that most of its files include.
function(add_lockstep_library name)
  cmake_parse_arguments(ARG "TORCH;UNOPTIMIZED" "" "SOURCES;EXCEPT;DEPENDS;PRIVATE;HEADERS;PRECOMPILED" ${ARGN})
  file(GLOB _sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp)
  foreach(_source IN LISTS ARG_EXCEPT)
    cmake_path(GET _source FILENAME _source)
    list(REMOVE_ITEM _sources ${CMAKE_CURRENT_SOURCE_DIR}/${name}/${_source})
  endforeach()
  add_library(lockstep_${name} STATIC ${ARG_SOURCES} ${_sources})
  add_library(lockstep::${name} ALIAS lockstep_${name})
  target_link_libraries(lockstep_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE} "$<BUILD_INTERFACE:${ARG_HEADERS}>")
  if(ARG_PRECOMPILED)
    _lockstep_settings(lockstep_${name} "${ARG_TORCH}" OWN)
    target_precompile_headers(lockstep_${name} PRIVATE ${LOCKSTEP_PLAIN_HEADERS} ${ARG_PRECOMPILED})
  elseif(ARG_UNOPTIMIZED)
    _unoptimized_settings(lockstep_${name})
  else()
    _lockstep_settings(lockstep_${name} "${ARG_TORCH}")
  endif()
endfunction()

# add_lockstep_program(NAME [TORCH [OPTIMIZED]] SOURCES ... DEPENDS ...): what measures is OPTIMIZED.
function(add_lockstep_program name)
  cmake_parse_arguments(ARG "TORCH;OPTIMIZED" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS})
  if(ARG_TORCH AND NOT ARG_OPTIMIZED)
    _unoptimized_settings(${name})
  else()
    _lockstep_settings(${name} "${ARG_TORCH}")
  endif()
endfunction()

# The lesson once more, with somebody's exercise in place of one of its sources: `lockstep exercise check` writes that
# file and builds this target, which no other build does.
function(_add_exercise lesson source depends)
  cmake_path(GET source STEM stem)
  set(target exercise_${lesson}_${stem})
  set(woven ${PROJECT_BINARY_DIR}/exercises/${lesson}/${stem}.cpp)
  set_source_files_properties(${woven} PROPERTIES GENERATED TRUE)
  add_executable(${target} EXCLUDE_FROM_ALL ${woven}
    $<FILTER:$<TARGET_OBJECTS:${lesson}>,EXCLUDE,/${stem}\\.cpp\\.o$>)
  target_link_libraries(${target} PRIVATE ${depends})
  cmake_path(GET source PARENT_PATH folder)
  target_include_directories(${target} PRIVATE ${folder})
  _unoptimized_settings(${target})
  target_compile_options(${target} PRIVATE -Wno-error -Wno-unused -Wno-unused-parameter)
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/exercises)
endfunction()

# add_lesson(NN_name SOURCES ... [DEPENDS ...]): the lesson's program, in the build folder's bin/, and what exercises
# are built as.
function(add_lesson name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  list(APPEND ARG_DEPENDS lockstep::lesson)
  add_lockstep_program(${name} TORCH SOURCES ${ARG_SOURCES} DEPENDS ${ARG_DEPENDS})
  # Each file by itself: a reader edits one, or an exercise takes its place.
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  # Which variants it has, for the tests.
  set(_described ${PROJECT_BINARY_DIR}/described/${name}.json)
  add_custom_command(TARGET ${name} POST_BUILD VERBATIM BYPRODUCTS ${_described}
    COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:${name}> -DFILE=${_described}
            -P ${PROJECT_SOURCE_DIR}/cmake/Describe.cmake)
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_LESSONS ${name})
  foreach(source IN LISTS ARG_SOURCES)
    file(STRINGS ${source} switches REGEX "fault\\(\"")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    if(switches)
      _add_exercise(${name} ${source} "${ARG_DEPENDS}")
    endif()
  endforeach()
endfunction()

# add_lockstep_test(NAME [TORCH] [EACH_CASE] SOURCES ... DEPENDS ... LABEL unit [TIMEOUT s])
# A GoogleTest program. Each of its suites is a test, named LABEL.Suite: starting the program takes longer than most cases.
# With EACH_CASE each case is a test, named LABEL.Suite.Case. CTest reports a test that skips a case as skipped, never as
# passed. A case fails that leaves a process, a listening socket, shared memory or a temporary file behind.
function(add_lockstep_test name)
  cmake_parse_arguments(ARG "TORCH;EACH_CASE" "LABEL;TIMEOUT" "SOURCES;DEPENDS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT TARGET lockstep_test_main)  # once for all of them
    set(_support ${PROJECT_SOURCE_DIR}/tests/support)
    add_library(lockstep_test_main STATIC
      ${_support}/main.cpp ${_support}/nothing_left.cpp ${_support}/program.cpp ${_support}/checkout.cpp)
    target_link_libraries(lockstep_test_main PUBLIC GTest::gtest GTest::gmock lockstep::base)
    target_compile_definitions(lockstep_test_main PRIVATE LOCKSTEP_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
      LOCKSTEP_PYTHON="$<$<BOOL:${LOCKSTEP_PYTHON}>:${LOCKSTEP_PYTHON}>")
    _lockstep_settings(lockstep_test_main FALSE)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} lockstep_test_main)
  if(ARG_TORCH)
    _unoptimized_settings(${name})
  else()
    target_compile_options(${name} PRIVATE ${LOCKSTEP_UNOPTIMIZED})
    _lockstep_settings(${name} FALSE lockstep_test_pch)
    _link_first(${name} ${ARG_DEPENDS})
  endif()
  set(properties TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77)
  if(ARG_EACH_CASE)
    gtest_discover_tests(${name} TEST_PREFIX "${ARG_LABEL}." DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
      PROPERTIES LABELS ${ARG_LABEL} ${properties})
    return()
  endif()
  # The build lists them, on all cores; ctest would start one program after the other.
  set(suites ${CMAKE_CURRENT_BINARY_DIR}/${name}_suites)
  add_custom_command(TARGET ${name} POST_BUILD VERBATIM COMMAND ${CMAKE_COMMAND}
    -DPROGRAM=$<TARGET_FILE:${name}> -DLISTED=${suites}.txt -P ${PROJECT_SOURCE_DIR}/cmake/list_suites.cmake)
  file(GENERATE OUTPUT ${suites}.cmake CONTENT "set(PROGRAM [==[$<TARGET_FILE:${name}>]==])
set(LISTED [==[${suites}.txt]==])
set(LABEL ${ARG_LABEL})
set(PROPERTIES ${properties})
include([==[${PROJECT_SOURCE_DIR}/cmake/suites.cmake]==])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${suites}.cmake)
endfunction()
include(GoogleTest)

# add_lockstep_python_test(NAME [TORCH] [FULL] COMMAND script.py ... LABEL unit PROPERTIES TIMEOUT s ...)
# The test LABEL.NAME: a script of this folder, run by python3 or by the Python beside LibTorch. Exit code 77 is a skip;
# so is a machine without that Python. FULL: the full tier's, which runs it by its name (tests/full_tier.py).
function(add_lockstep_python_test name)
  cmake_parse_arguments(ARG "TORCH;FULL" "LABEL" "COMMAND;PROPERTIES" ${ARGN})
  set(python ${Python3_EXECUTABLE})
  set(missing "no python3 was found")
  if(ARG_TORCH)
    set(python ${LOCKSTEP_PYTHON})
    set(missing "no Python was found beside LibTorch")
  endif()
  set(name ${ARG_LABEL}.${name})
  if(python)
    list(TRANSFORM ARG_COMMAND PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ REGEX "^[^/]*\\.py$")
    add_test(NAME ${name} COMMAND ${python} ${ARG_COMMAND})
  else()
    add_test(NAME ${name} COMMAND sh -c "echo 'skipped: ${missing}'; exit 77")
  endif()
  set(labels ${ARG_LABEL})
  if(ARG_FULL)
    list(APPEND labels full)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" SKIP_RETURN_CODE 77 ${ARG_PROPERTIES})
endfunction()
