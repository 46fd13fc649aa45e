# What a diagnosis costs as ranks are added. ./lockstep bench diagnose_scale
add_lockstep_program(diagnose_scale SOURCES diagnose_scale.cpp simulated_traces.cpp
  DEPENDS lockstep::diagnose lockstep::trace CLI11::CLI11 nlohmann_json::nlohmann_json)
set_target_properties(diagnose_scale PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
target_compile_definitions(diagnose_scale PRIVATE LOCKSTEP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
