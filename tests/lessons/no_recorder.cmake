# Each lesson's program once more, without a recorder, in tests/no_recorder/: its oracles must judge as they do with one.
add_library(no_recorder OBJECT no_recorder.cpp)
target_link_libraries(no_recorder PRIVATE lockstep::record)
_lockstep_settings(no_recorder TRUE)
get_property(_lessons GLOBAL PROPERTY LOCKSTEP_LESSONS)
foreach(_lesson IN LISTS _lessons)
  get_target_property(_libraries ${_lesson} LINK_LIBRARIES)
  add_executable(no_recorder_${_lesson} $<TARGET_OBJECTS:${_lesson}> $<TARGET_OBJECTS:no_recorder>)
  target_link_libraries(no_recorder_${_lesson} PRIVATE ${_libraries})
  target_link_options(no_recorder_${_lesson} PRIVATE LINKER:--wrap=_ZN8lockstep7observeERKSt10shared_ptrINS_8ObserverEE)
  set_target_properties(no_recorder_${_lesson} PROPERTIES
    OUTPUT_NAME ${_lesson} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/no_recorder)
endforeach()

# One of each kind of oracle: of ids, of what one process computes, of devices in one process, of what a rank saw before a
# crash, before a stall, over two attempts, of devices that ranks choose, of a metric; and a correct one. All variants
# take half an hour: python3 tests/lessons/compare_builds.py --blind BUILD/bin BUILD/tests/no_recorder
set(_one_of_each_kind
  02_data_parallel:odd-batch-split 03_ddp:sum-not-mean 05_set_epoch:correct 05_set_epoch:missing-set-epoch
  07_checkpoint:module-prefix 09_hanging_collective:rank-conditional-collective 10_launch:duplicate-gpu
  14_unused_parameters:unused-parameter 16_metrics:rank-zero-metric 18_elastic_restart:restart-without-resume)
add_lockstep_python_test(OraclesNeedNoRecorder TORCH
  COMMAND ${PROJECT_SOURCE_DIR}/tests/lessons/compare_builds.py --blind
    --ranks default ${PROJECT_BINARY_DIR}/bin ${PROJECT_BINARY_DIR}/tests/no_recorder ${_one_of_each_kind}
  LABEL lessons PROPERTIES TIMEOUT 300)
