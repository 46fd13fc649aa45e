# Checkpoints between Python and C++ on the same LibTorch, both ways.
add_lockstep_program(checkpoint_parity TORCH SOURCES checkpoint_parity.cpp DEPENDS lockstep::checkpoint)
set_target_properties(checkpoint_parity PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
if(LOCKSTEP_PYTHON)
  add_test(NAME parity.checkpoint
    COMMAND ${LOCKSTEP_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/checkpoint_parity.py $<TARGET_FILE:checkpoint_parity>)
else()
  add_test(NAME parity.checkpoint COMMAND sh -c "echo 'skipped: no Python was found beside LibTorch'; exit 77")
endif()
set_tests_properties(parity.checkpoint PROPERTIES LABELS parity TIMEOUT 180 SKIP_RETURN_CODE 77)
