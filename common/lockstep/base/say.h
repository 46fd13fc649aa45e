// Words to the user from inside of a program that is not ours: it goes on, and ends, as without them.
#pragma once

#include <string_view>

namespace lockstep {

// The file that has the number 2 now is standard error, until another one has it: a program may close it, and get the
// number for its data. Called once when the library is loaded, and by whoever puts a file of its own there.
void note_standard_error();

// Whole lines, and at once. Nothing where standard error is another file by now. It may be full, or have no reader:
// waits for room for some seconds at most, and neither SIGPIPE nor, in the background of a terminal, SIGTTOU comes.
void say(std::string_view lines) noexcept;

}  // namespace lockstep
