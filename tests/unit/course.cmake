add_lockstep_test(pitfall_source_test SOURCES course_text_test.cpp pitfall_source_test.cpp DEPENDS lockstep::course LABEL unit)
