# Read by ctest when all tests are known: what needs a GPU carries the label gpu beside its own.
set_tests_properties(dist.Training/OnTheGpu PROPERTIES LABELS "dist;gpu")
