# What a run records. Ranks as threads of one process.
foreach(name backend between into probes random_numbers raw scaling state)
  add_lockstep_test(record_${name}_test TORCH SOURCES record_${name}_test.cpp
    DEPENDS lockstep::record lockstep::diagnose lockstep::train LABEL dist)
endforeach()

add_lockstep_test(recorder_test TORCH SOURCES recorder_test.cpp
  DEPENDS lockstep::record lockstep::diagnose lockstep::train LABEL dist)

# Checked mode.
foreach(name backend mismatch missing)
  add_lockstep_test(checked_${name}_test TORCH SOURCES checked_${name}_test.cpp
    DEPENDS lockstep::record lockstep::train LABEL dist)
endforeach()
