# cmake -DNM= -DPROGRAM= -DLIBRARY= -P: every function of CUDA and NCCL that the program calls is one of the library's.
#
# The real ones answer these: texts, versions, and what is only noted down.
set(_without_a_gpu
  cudaGetErrorName cudaGetErrorString ncclGetErrorString ncclGetVersion
  __cudaRegisterFatBinary __cudaRegisterFatBinaryEnd __cudaUnregisterFatBinary)
function(functions_of variable file option)
  execute_process(COMMAND ${NM} -D ${option} ${file} OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL " [TU] (__cuda|cuda|nccl)[A-Za-z0-9_]+" found "${said}")
  list(TRANSFORM found REPLACE " [TU] " "")
  set(${variable} ${found} PARENT_SCOPE)
endfunction()
functions_of(_called ${PROGRAM} --undefined-only)
functions_of(_pretended ${LIBRARY} --defined-only)
if(NOT "ncclAllReduce" IN_LIST _called)
  message(FATAL_ERROR "${PROGRAM} does not call NCCL")
endif()
list(REMOVE_ITEM _called ${_pretended} ${_without_a_gpu})
if(_called)
  message(FATAL_ERROR "called, and not pretended: ${_called}")
endif()
