# LOCKSTEP_DETECTORS: each file of detectors/, which gives NAME_detectors() and need not be listed anywhere, and the one
# that gathers them.
file(GLOB LOCKSTEP_DETECTORS CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/detectors/*.cpp)
set(DECLARATIONS "")
set(CALLS "")
foreach(file IN LISTS LOCKSTEP_DETECTORS)
  cmake_path(GET file STEM name)
  string(APPEND DECLARATIONS "std::vector<Detector> ${name}_detectors();\n")
  string(APPEND CALLS "             ${name}_detectors(),\n")
endforeach()
configure_file(${CMAKE_CURRENT_LIST_DIR}/all_detectors.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/all_detectors.cpp @ONLY)
list(APPEND LOCKSTEP_DETECTORS ${CMAKE_CURRENT_BINARY_DIR}/all_detectors.cpp)
