add_lockstep_test(matrix_test
  SOURCES beside_test.cpp matrix_test.cpp matrix_command_test.cpp score_test.cpp
  DEPENDS lockstep::matrix nlohmann_json::nlohmann_json LABEL unit)
add_dependencies(matrix_test lockstep-course)
target_compile_definitions(matrix_test PRIVATE LOCKSTEP_COURSE="$<TARGET_FILE:lockstep-course>")
