# Collectives with a gradient, against torch.distributed.nn.functional's.
add_lockstep_program(functional_parity TORCH SOURCES functional_parity.cpp DEPENDS lockstep::train)
set_target_properties(functional_parity PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
if(LOCKSTEP_PYTHON)
  add_test(NAME parity.functional
    COMMAND ${LOCKSTEP_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/functional_parity_test.py $<TARGET_FILE:functional_parity>)
else()
  add_test(NAME parity.functional COMMAND sh -c "echo 'skipped: no Python was found beside LibTorch'; exit 77")
endif()
set_tests_properties(parity.functional PROPERTIES LABELS parity TIMEOUT 120 COST 100 SKIP_RETURN_CODE 77)
