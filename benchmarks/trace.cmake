# The cost of one record. ./lockstep bench trace_write
find_package(benchmark QUIET)
if(benchmark_FOUND)
  add_lockstep_program(trace_write SOURCES trace_write.cpp DEPENDS lockstep::trace benchmark::benchmark)
  set_target_properties(trace_write PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
else()
  message(STATUS "google-benchmark was not found (libbenchmark-dev): trace_write is not built")
endif()
