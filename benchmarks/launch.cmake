# From a launch to the first all-reduce.
add_lockstep_program(launch_time TORCH SOURCES ${CMAKE_CURRENT_LIST_DIR}/launch_time.cpp
  DEPENDS lockstep::dist lockstep::launch)
set_target_properties(launch_time PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)

# What too many threads cost.
add_lockstep_program(thread_oversubscription TORCH SOURCES ${CMAKE_CURRENT_LIST_DIR}/thread_oversubscription.cpp
  DEPENDS lockstep::dist lockstep::train lockstep::launch CLI11::CLI11 nlohmann_json::nlohmann_json)
target_compile_definitions(thread_oversubscription PRIVATE LOCKSTEP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
set_target_properties(thread_oversubscription PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
