// What the programs behind ./lockstep share: a command line, and what becomes of errors.
#pragma once

#include <lockstep/course/commands.h>

namespace lockstep::course {

using AddCommands = std::function<void(CLI::App& app, int& exit_code)>;

// Parses the command line, runs the command that it names, and returns the ExitCode. An error is one line for a person.
int program(int argc, char** argv, const AddCommands& add_commands);

}  // namespace lockstep::course
