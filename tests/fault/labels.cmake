# Read by ctest when all tests are known: what rows.json names carries the label fault beside its own.
file(READ ${CMAKE_CURRENT_LIST_DIR}/rows.json _table)
string(JSON _rows LENGTH "${_table}" rows)
math(EXPR _last_row "${_rows} - 1")
foreach(_row RANGE ${_last_row})
  string(JSON _tests LENGTH "${_table}" rows ${_row} tests)
  math(EXPR _last_test "${_tests} - 1")
  foreach(_test RANGE ${_last_test})
    string(JSON _name GET "${_table}" rows ${_row} tests ${_test})
    if(_name MATCHES "^(unit|dist)\\.")  # there, a test is a suite
      string(REGEX REPLACE "^([^.]+\\.[^.]+)\\..*" "\\1" _name "${_name}")
    endif()
    set_tests_properties("${_name}" PROPERTIES LABELS fault)
  endforeach()
endforeach()

# Those that need a GPU.
foreach(_case ARankThatSkipsACollective ARankThatIsKilled AnUnseenFailureComesOutWhenTheGroupIsLeft
        NothingIsWrongWithRanksThatAllCome)
  set_tests_properties(fault.NcclFault.${_case} PROPERTIES LABELS "fault;gpu" TIMEOUT 90 RUN_SERIAL TRUE)
endforeach()
