# A driver that tests write themselves, in a folder that they put before the system's.
set(LOCKSTEP_FAKE_DRIVER ${PROJECT_BINARY_DIR}/tests/fake_driver)
foreach(_part cuda:cuda nvml:nvidia-ml)
  string(REPLACE ":" ";" _part ${_part})
  list(GET _part 0 _source)
  list(GET _part 1 _name)
  add_library(fake_${_source} SHARED ${PROJECT_SOURCE_DIR}/tests/support/fake_${_source}.cpp)
  set_target_properties(fake_${_source} PROPERTIES OUTPUT_NAME ${_name} SUFFIX .so.1
    LIBRARY_OUTPUT_DIRECTORY ${LOCKSTEP_FAKE_DRIVER})
  target_compile_features(fake_${_source} PRIVATE cxx_std_20)
  target_compile_options(fake_${_source} PRIVATE ${LOCKSTEP_WARNINGS})
endforeach()
add_lockstep_program(gpu_facts SOURCES gpu_facts.cpp DEPENDS lockstep::gpu)

add_lockstep_test(gpu_test
  SOURCES gpu_require_nccl_test.cpp gpu_nccl_environment_test.cpp gpu_driver_test.cpp
  DEPENDS lockstep::gpu lockstep::base
  LABEL unit)
target_compile_definitions(gpu_test PRIVATE GPU_FACTS="$<TARGET_FILE:gpu_facts>" FAKE_DRIVER="${LOCKSTEP_FAKE_DRIVER}")
add_dependencies(gpu_test gpu_facts fake_cuda fake_nvml)
