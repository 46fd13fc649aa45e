# Read by ctest: each suite of the GoogleTest program PROGRAM is a test, named LABEL.Suite, with PROPERTIES. The build has
# written the suites' names to LISTED (list_suites.cmake).
if(NOT EXISTS "${LISTED}")
  get_filename_component(_name "${PROGRAM}" NAME)
  add_test(${_name}_NOT_BUILT ${_name}_NOT_BUILT)
  return()
endif()
file(READ "${LISTED}" _suites)
foreach(_suite IN LISTS _suites)
  add_test("${LABEL}.${_suite}" "${PROGRAM}" "--gtest_filter=${_suite}.*")
  set_tests_properties("${LABEL}.${_suite}" PROPERTIES LABELS ${LABEL} ${PROPERTIES})
endforeach()
