# ./lockstep bench lr_scaling
add_lockstep_program(lr_scaling TORCH SOURCES ${CMAKE_CURRENT_LIST_DIR}/lr_scaling.cpp DEPENDS lockstep::train)
set_target_properties(lr_scaling PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
