add_lockstep_test(matrix_test
  SOURCES matrix_test.cpp score_test.cpp ../support/program.cpp
  DEPENDS lockstep::matrix nlohmann_json::nlohmann_json LABEL unit)
target_compile_definitions(matrix_test PRIVATE
  LOCKSTEP_PYTHON="$<$<BOOL:${LOCKSTEP_PYTHON}>:${LOCKSTEP_PYTHON}>" LOCKSTEP_SCHEMA_FOLDER="${PROJECT_SOURCE_DIR}/reports/schema"
  LOCKSTEP_SUPPORT_FOLDER="${PROJECT_SOURCE_DIR}/tests/support")
