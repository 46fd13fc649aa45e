# cmake -DPROGRAM=... -DLISTED=... -P: writes the names of the GoogleTest program's suites to the file LISTED.
execute_process(COMMAND "${PROGRAM}" --gtest_list_tests OUTPUT_VARIABLE _output ERROR_VARIABLE _error
  RESULT_VARIABLE _code TIMEOUT 60)
if(NOT _code EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} --gtest_list_tests ended with ${_code}:\n${_output}${_error}")
endif()
string(REGEX MATCHALL "\n[A-Za-z0-9_/]+\\." _suites "\n${_output}")
list(TRANSFORM _suites REPLACE "[\n.]" "")
file(WRITE "${LISTED}" "${_suites}")
