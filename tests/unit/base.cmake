add_lockstep_test(base_test
  SOURCES base_test.cpp say_test.cpp text_test.cpp
  DEPENDS lockstep::base
  LABEL unit)
