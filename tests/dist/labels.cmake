# Read by ctest when all tests are known: those that need a GPU carry the label gpu beside their own.
foreach(_case plain no_sync clipped sync_batch_norm bf16_hook autocast_bf16 autocast_fp16_scaled)
  set_tests_properties("dist.Training/OnTheGpu.MovesAsOnTheCpu/${_case}" PROPERTIES LABELS "dist;gpu")
endforeach()
