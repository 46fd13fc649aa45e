# python benchmarks/ddp_step.py build/.../benchmarks/ddp_step
add_lockstep_program(ddp_step TORCH SOURCES ${CMAKE_CURRENT_LIST_DIR}/ddp_step.cpp DEPENDS lockstep::train)
set_target_properties(ddp_step PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
