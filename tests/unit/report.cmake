add_lockstep_test(report_test
  SOURCES report_test.cpp ../support/program.cpp DEPENDS lockstep::report nlohmann_json::nlohmann_json LABEL unit)
target_compile_definitions(report_test PRIVATE
  LOCKSTEP_PYTHON="$<$<BOOL:${LOCKSTEP_PYTHON}>:${LOCKSTEP_PYTHON}>" LOCKSTEP_SCHEMA_FOLDER="${PROJECT_SOURCE_DIR}/reports/schema"
  LOCKSTEP_SUPPORT_FOLDER="${PROJECT_SOURCE_DIR}/tests/support")
add_lockstep_test(pictures_test
  SOURCES pictures_test.cpp ../contract/job.cpp ../contract/hang_job.cpp DEPENDS lockstep::report LABEL unit)
