# libdeflate (Debian's 1.14 brings no CMake package): lockstep::libdeflate.
find_path(LIBDEFLATE_INCLUDE libdeflate.h)
find_library(LIBDEFLATE_LIBRARY deflate)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libdeflate REQUIRED_VARS LIBDEFLATE_LIBRARY LIBDEFLATE_INCLUDE)
if(Libdeflate_FOUND AND NOT TARGET lockstep::libdeflate)
  add_library(lockstep::libdeflate INTERFACE IMPORTED)
  set_target_properties(lockstep::libdeflate PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES ${LIBDEFLATE_INCLUDE} INTERFACE_LINK_LIBRARIES ${LIBDEFLATE_LIBRARY})
endif()
