# What a callback on every operator costs. With NDEBUG, as the wheel was built: without it RecordFunction::inputs() goes
# by a flag that the wheel's code never sets, and throws.
add_lockstep_program(record_function TORCH SOURCES record_function.cpp
  DEPENDS lockstep::train CLI11::CLI11 nlohmann_json::nlohmann_json)
target_compile_definitions(record_function PRIVATE NDEBUG LOCKSTEP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
set_target_properties(record_function PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
