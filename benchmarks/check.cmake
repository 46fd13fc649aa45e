# What the checked mode costs.
add_lockstep_program(check_overhead TORCH SOURCES check_overhead.cpp
  DEPENDS lockstep::record lockstep::train lockstep::launch CLI11::CLI11 nlohmann_json::nlohmann_json)
target_compile_definitions(check_overhead PRIVATE LOCKSTEP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
