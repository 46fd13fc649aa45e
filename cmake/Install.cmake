# What `cmake --install` puts down: the libraries with their headers, the package for find_package(Lockstep), and
# the torch-free program as bin/lockstep. Nothing else has to be built: `libraries` builds just that.
include(CMakePackageConfigHelpers)

set(_folders base launch gpu trace archive flight diagnose observe dist train record checkpoint prove)
set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
set(_libraries ${_folders} recorder supervise)  # whose sources lie in record and in launch
list(TRANSFORM _folders PREPEND common/lockstep/)
install(DIRECTORY ${_folders} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep FILES_MATCHING PATTERN "*.h"
  PATTERN kernels EXCLUDE PATTERN diagnose/format.h EXCLUDE)  # that our sources alone include
foreach(_library IN LISTS _libraries)
  set_target_properties(lockstep_${_library} PROPERTIES EXPORT_NAME ${_library})
  install(TARGETS lockstep_${_library} EXPORT LockstepTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endforeach()
list(TRANSFORM _libraries PREPEND lockstep_)
add_custom_target(libraries DEPENDS ${_libraries} lockstep-course)
install(PROGRAMS $<TARGET_FILE:lockstep-course> DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME lockstep OPTIONAL)
if(TARGET lockstep_nccl)
  # It finds torch_cuda where the build did; elsewhere LD_LIBRARY_PATH names LibTorch's lib/.
  set_target_properties(lockstep_nccl PROPERTIES INSTALL_RPATH ${LOCKSTEP_TORCH_LIB})
  install(TARGETS lockstep_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
endif()

install(EXPORT LockstepTargets NAMESPACE lockstep:: DESTINATION ${_package})
configure_package_config_file(cmake/LockstepConfig.cmake.in ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
  INSTALL_DESTINATION ${_package} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
        cmake/Torch.cmake cmake/FindLibdeflate.cmake DESTINATION ${_package})
