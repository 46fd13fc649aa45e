# python benchmarks/gpu_step.py build/.../benchmarks/gpu_step
add_lockstep_program(gpu_step TORCH SOURCES ${CMAKE_CURRENT_LIST_DIR}/gpu/step.cpp ${CMAKE_CURRENT_LIST_DIR}/gpu/models.cpp
  DEPENDS lockstep::train lockstep::record)
set_target_properties(gpu_step PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
