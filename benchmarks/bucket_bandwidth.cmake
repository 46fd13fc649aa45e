# The gradient bucket's kernels against a device-to-device copy.
if(LOCKSTEP_HAVE_CUDA)
  add_lockstep_program(bucket_bandwidth SOURCES bucket_bandwidth.cpp
    DEPENDS lockstep::cuda lockstep::gpu nlohmann_json::nlohmann_json)
endif()
