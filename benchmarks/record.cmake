# What recording costs.
add_lockstep_program(observe_overhead TORCH SOURCES observe_overhead.cpp
  DEPENDS lockstep::record lockstep::train lockstep::launch CLI11::CLI11 nlohmann_json::nlohmann_json)
target_compile_definitions(observe_overhead PRIVATE LOCKSTEP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
