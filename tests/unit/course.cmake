add_lockstep_test(pitfall_source_test SOURCES course_text_test.cpp pitfall_source_test.cpp DEPENDS lockstep::course LABEL unit)
target_compile_definitions(pitfall_source_test PRIVATE LOCKSTEP_SOURCE_FOLDER="${PROJECT_SOURCE_DIR}")
