# From a launch to the first all-reduce.
add_lockstep_program(launch_time TORCH SOURCES ${CMAKE_CURRENT_LIST_DIR}/launch_time.cpp
  DEPENDS lockstep::dist lockstep::launch)
set_target_properties(launch_time PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
