# python benchmarks/checkpoint.py build/.../benchmarks/checkpoint
add_lockstep_program(checkpoint TORCH SOURCES ${CMAKE_CURRENT_LIST_DIR}/checkpoint.cpp DEPENDS lockstep::checkpoint)
set_target_properties(checkpoint PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
