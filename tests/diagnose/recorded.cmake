# Runs of the lessons' programs, judged; the rest of the folder needs no lesson.
add_lockstep_test(recorded_test
  SOURCES recorded_test.cpp renamed_run.cpp
  DEPENDS lockstep::diagnose lockstep::report nlohmann_json::nlohmann_json
  LABEL diagnose)
target_compile_definitions(recorded_test PRIVATE LOCKSTEP_LESSONS_FOLDER="${PROJECT_BINARY_DIR}/bin"
  LOCKSTEP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
get_property(_lessons GLOBAL PROPERTY LOCKSTEP_LESSONS)
add_dependencies(recorded_test ${_lessons})
add_lockstep_python_test(corpus TORCH COMMAND corpus_test.py ${PROJECT_BINARY_DIR}/bin $<TARGET_FILE:lockstep-course>
  LABEL diagnose PROPERTIES TIMEOUT 180)
