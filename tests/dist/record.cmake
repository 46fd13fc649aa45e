# What a run records. Ranks as threads of one process.
foreach(name backend probes random_numbers scaling)
  add_lockstep_test(record_${name}_test TORCH SOURCES record_${name}_test.cpp
    DEPENDS lockstep::record lockstep::train LABEL dist TIMEOUT 90)
endforeach()
add_lockstep_test(record_sketch_test TORCH SOURCES record_sketch_test.cpp
  DEPENDS lockstep::record LABEL unit TIMEOUT 60)
add_lockstep_test(record_virtuals_test SOURCES record_virtuals_test.cpp
  DEPENDS lockstep::base LABEL unit TIMEOUT 30)
target_compile_definitions(record_virtuals_test PRIVATE
  LOCKSTEP_C10D="${LOCKSTEP_TORCH_INCLUDE}/torch/csrc/distributed/c10d"
  LOCKSTEP_RECORD="${PROJECT_SOURCE_DIR}/common/lockstep/record")
