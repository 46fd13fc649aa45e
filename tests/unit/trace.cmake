add_lockstep_test(trace_test
  SOURCES trace_attempts_test.cpp trace_clocks_test.cpp trace_format_test.cpp trace_levels_test.cpp trace_damage_test.cpp
          trace_writer_test.cpp
  DEPENDS lockstep::trace nlohmann_json::nlohmann_json LABEL unit)
