add_lockstep_test(checkpoint_test TORCH
  SOURCES checkpoint_tensors_test.cpp checkpoint_model_test.cpp checkpoint_optimizer_test.cpp
  DEPENDS lockstep::checkpoint LABEL unit)
