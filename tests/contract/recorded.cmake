# Runs of the lessons' programs, judged; the rest of the folder needs no lesson.
add_lockstep_test(recorded_test
  SOURCES recorded_test.cpp calls.cpp renamed_run.cpp ../support/program.cpp
  DEPENDS lockstep::matrix lockstep::diagnose lockstep::pages
  LABEL contract TIMEOUT 120)
target_compile_definitions(recorded_test PRIVATE LOCKSTEP_LESSONS_FOLDER="${PROJECT_BINARY_DIR}/bin"
  LOCKSTEP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
get_property(_lessons GLOBAL PROPERTY LOCKSTEP_LESSONS)
add_dependencies(recorded_test ${_lessons})
if(LOCKSTEP_PYTHON)
  add_test(NAME contract.matrix_sweep COMMAND ${LOCKSTEP_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/matrix_sweep_test.py)
else()
  add_test(NAME contract.matrix_sweep COMMAND sh -c "echo 'skipped: no Python was found beside LibTorch'; exit 77")
endif()
set_tests_properties(contract.matrix_sweep PROPERTIES LABELS contract TIMEOUT 60 SKIP_RETURN_CODE 77)
if(LOCKSTEP_PYTHON)
  add_test(NAME contract.corpus COMMAND ${LOCKSTEP_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/corpus_test.py
    ${PROJECT_BINARY_DIR}/bin $<TARGET_FILE:lockstep-course>)
else()
  add_test(NAME contract.corpus COMMAND sh -c "echo 'skipped: no Python was found beside LibTorch'; exit 77")
endif()
set_tests_properties(contract.corpus PROPERTIES LABELS contract TIMEOUT 180 SKIP_RETURN_CODE 77)
