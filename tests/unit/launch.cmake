add_lockstep_test(launch_unit_test
  SOURCES launch_placement_test.cpp launch_result_test.cpp launch_error_file_test.cpp launch_go_on_test.cpp launch_options_test.cpp
  DEPENDS lockstep::launch lockstep::base nlohmann_json::nlohmann_json
  LABEL unit)
