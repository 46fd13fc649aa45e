# What earlier builds recorded, read by this one.
add_lockstep_test(old_trace_test SOURCES old_trace_test.cpp expect.cpp
  DEPENDS lockstep::diagnose nlohmann_json::nlohmann_json LABEL diagnose)
target_compile_definitions(old_trace_test PRIVATE LOCKSTEP_OLD_TRACES="${CMAKE_CURRENT_SOURCE_DIR}/old_traces")
