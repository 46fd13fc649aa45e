foreach(name checkpoint broadcast_value join)
  add_lockstep_test(dist_${name}_test TORCH SOURCES ${name}_test.cpp
    DEPENDS lockstep::checkpoint LABEL dist)
endforeach()
