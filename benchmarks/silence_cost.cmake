# What silent faults cost: ./lockstep bench silence_cost
file(GLOB _silence CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/silence/*.cpp)
add_lockstep_program(silence_cost TORCH SOURCES ${_silence}
  DEPENDS lockstep::checkpoint lockstep::record lockstep::train lockstep::launch CLI11::CLI11 nlohmann_json::nlohmann_json)
set_target_properties(silence_cost PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
