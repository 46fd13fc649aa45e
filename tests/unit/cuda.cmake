add_lockstep_test(cuda_test
  SOURCES cuda_bucket_plan_test.cpp
  DEPENDS lockstep::cuda
  LABEL unit)
