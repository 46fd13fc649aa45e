# The file format, without torch.
add_lockstep_test(archive_test
  SOURCES archive_pickle_test.cpp archive_zip_test.cpp archive_damage_test.cpp archive_saving_test.cpp
          archive_place_test.cpp archive_folder_test.cpp
  DEPENDS lockstep::archive ZLIB::ZLIB LABEL unit)
# It makes millions of values, and is a program of its own: with others' object files in it, the linker would take the
# standard library's functions from these, where they are not optimized.
add_lockstep_test(archive_memory_test SOURCES archive_memory_test.cpp DEPENDS lockstep::archive LABEL unit)
set_source_files_properties(archive_memory_test.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS -O2)
