# LibTorch brings the shared libstdc++ into every process. With the static one in a program beside it, each frees what the
# other has allocated: "free(): invalid pointer", at the first process group. A compiler that was installed without the shared
# one links the static one unasked; then the one that the system's programs run with is linked.
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.so OUTPUT_VARIABLE _shared
                OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT IS_ABSOLUTE "${_shared}")
  find_library(LOCKSTEP_LIBSTDCXX libstdc++.so.6)
  if(NOT LOCKSTEP_LIBSTDCXX)
    message(FATAL_ERROR "${CMAKE_CXX_COMPILER} has no shared libstdc++, which LibTorch needs beside it. Name another compiler "
      "(-DCMAKE_CXX_COMPILER=FILE), or the library: -DLOCKSTEP_LIBSTDCXX=FILE (libstdc++.so.6)")
  endif()
  link_libraries(${LOCKSTEP_LIBSTDCXX})
endif()
