# What needs no second rank, against Python's on the same LibTorch: DistributedSampler, the models' initial
# values, Adam, learning-rate schedules. The scripts exit with 77 where Python has no torch.
foreach(name sampler model optimizer schedule)
  add_lockstep_program(${name}_parity TORCH SOURCES ${name}_parity.cpp DEPENDS lockstep::train)
  set_target_properties(${name}_parity PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(LOCKSTEP_PYTHON)
    add_test(NAME parity.${name}
      COMMAND ${LOCKSTEP_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/${name}_parity.py $<TARGET_FILE:${name}_parity>)
  else()
    add_test(NAME parity.${name} COMMAND sh -c "echo 'skipped: no Python was found beside LibTorch'; exit 77")
  endif()
  set_tests_properties(parity.${name} PROPERTIES LABELS parity TIMEOUT 120 SKIP_RETURN_CODE 77)
endforeach()
