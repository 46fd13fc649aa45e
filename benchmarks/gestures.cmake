# A job that no lesson shaped: tests/unprobed.py scores what is named in it.
file(GLOB _gestures CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/gestures/*.cpp)
add_lockstep_program(gestures TORCH SOURCES ${_gestures}
  DEPENDS lockstep::checkpoint lockstep::record lockstep::train lockstep::launch CLI11::CLI11)
set_target_properties(gestures PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
