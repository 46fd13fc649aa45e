# LibTorch's clipping, GradScaler and Autocast, against Python's.
add_lockstep_program(mixed_precision TORCH SOURCES mixed_precision.cpp DEPENDS lockstep::train)
set_target_properties(mixed_precision PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
if(LOCKSTEP_PYTHON)
  add_test(NAME parity.mixed_precision
    COMMAND ${LOCKSTEP_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/mixed_precision.py $<TARGET_FILE:mixed_precision>)
else()
  add_test(NAME parity.mixed_precision COMMAND sh -c "echo 'skipped: no Python was found beside LibTorch'; exit 77")
endif()
set_tests_properties(parity.mixed_precision PROPERTIES LABELS parity TIMEOUT 120 SKIP_RETURN_CODE 77)
