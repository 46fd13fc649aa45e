add_lockstep_test(report_test
  SOURCES report_test.cpp DEPENDS lockstep::report nlohmann_json::nlohmann_json LABEL unit)
add_lockstep_test(pictures_test
  SOURCES pictures_test.cpp ../contract/job.cpp ../contract/hang_job.cpp DEPENDS lockstep::report LABEL unit)
add_lockstep_test(places_test
  SOURCES places_test.cpp ../contract/job.cpp DEPENDS lockstep::report nlohmann_json::nlohmann_json LABEL unit)
