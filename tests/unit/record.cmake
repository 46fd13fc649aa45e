add_lockstep_test(record_test TORCH SOURCES record_lines_test.cpp record_local_gradients_test.cpp
  record_readable_test.cpp record_sketch_test.cpp
  DEPENDS lockstep::record lockstep::train nlohmann_json::nlohmann_json LABEL unit)
target_compile_definitions(record_test PRIVATE LOCKSTEP_COMMON="${PROJECT_SOURCE_DIR}/common")
add_lockstep_test(record_virtuals_test SOURCES record_virtuals_test.cpp
  DEPENDS lockstep::base LABEL unit)
target_compile_definitions(record_virtuals_test PRIVATE
  LOCKSTEP_C10D="${LOCKSTEP_TORCH_INCLUDE}/torch/csrc/distributed/c10d")
