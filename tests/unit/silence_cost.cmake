# The statistics of benchmarks/silence_cost.py, and that its program runs. silence_cost is a target of benchmarks/.
if(LOCKSTEP_BENCHMARKS AND LOCKSTEP_PYTHON)
  add_custom_target(silence_cost_test ALL DEPENDS silence_cost)
  add_test(NAME unit.SilenceCost
    COMMAND ${LOCKSTEP_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/silence_cost_test.py $<TARGET_FILE:silence_cost>)
else()
  add_test(NAME unit.SilenceCost COMMAND sh -c "echo 'skipped: needs the benchmarks and a Python beside LibTorch'; exit 77")
endif()
set_tests_properties(unit.SilenceCost PROPERTIES LABELS unit TIMEOUT 240 COST 100 SKIP_RETURN_CODE 77)
