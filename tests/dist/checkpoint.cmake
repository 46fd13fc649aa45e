add_lockstep_test(dist_checkpoint_test TORCH SOURCES checkpoint_test.cpp
  DEPENDS lockstep::checkpoint LABEL dist TIMEOUT 60)
