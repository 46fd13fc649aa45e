// The commands of ./lockstep, each in a file of its name. They add themselves, with their options, to what the command
// line may say; the one that was asked for writes its ExitCode when all is parsed.
#pragma once

#include <CLI/CLI.hpp>

namespace lockstep::course {

void add_list_command(CLI::App& app, int& exit_code);
void add_run_command(CLI::App& app, int& exit_code);
void add_explain_command(CLI::App& app, int& exit_code);
void add_exercise_command(CLI::App& app, int& exit_code);
void add_compare_command(CLI::App& app, int& exit_code);
void add_diagnose_command(CLI::App& app, int& exit_code);

}  // namespace lockstep::course
