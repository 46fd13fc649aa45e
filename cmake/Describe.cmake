# What PROGRAM --describe says, into FILE.
cmake_path(GET FILE PARENT_PATH folder)
file(MAKE_DIRECTORY ${folder})
execute_process(COMMAND ${PROGRAM} --describe OUTPUT_FILE ${FILE}.new COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${FILE}.new ${FILE})
