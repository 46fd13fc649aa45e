add_lockstep_test(forms_test SOURCES course_text_test.cpp forms_test.cpp DEPENDS lockstep::course LABEL unit)
target_compile_definitions(forms_test PRIVATE LOCKSTEP_SOURCE_FOLDER="${PROJECT_SOURCE_DIR}")
