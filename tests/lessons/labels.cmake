# Read by ctest when all tests are known: the variants that need a GPU carry the label gpu beside their own.
foreach(_variant correct_communicators communicator_order near_miss_waited_in_another_order correct_streams wrong_stream
        near_miss_same_stream near_miss_host_waits)
  set_tests_properties("lessons.Lessons/Variant.IsWhatItClaims/L17_nccl_and_streams_${_variant}" PROPERTIES LABELS "lessons;gpu")
endforeach()
