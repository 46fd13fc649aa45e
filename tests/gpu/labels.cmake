# Read by ctest when all tests are known: it tells how long a stream is held up, which another process's kernels would add to.
set_tests_properties(gpu.Delay PROPERTIES RUN_SERIAL TRUE)
