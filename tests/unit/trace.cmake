add_lockstep_test(trace_test
  SOURCES trace_attempts_test.cpp trace_format_test.cpp trace_levels_test.cpp trace_damage_test.cpp trace_writer_test.cpp ../support/program.cpp
  DEPENDS lockstep::trace nlohmann_json::nlohmann_json LABEL unit)
target_compile_definitions(trace_test PRIVATE
  LOCKSTEP_PYTHON="$<$<BOOL:${LOCKSTEP_PYTHON}>:${LOCKSTEP_PYTHON}>" LOCKSTEP_SCHEMA_FOLDER="${PROJECT_SOURCE_DIR}/reports/schema"
  LOCKSTEP_SUPPORT_FOLDER="${PROJECT_SOURCE_DIR}/tests/support"
  LOCKSTEP_TRACE_PAGE="${PROJECT_SOURCE_DIR}/common/lockstep/trace/trace.md")
