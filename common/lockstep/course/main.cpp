// The program behind ./lockstep.
#include <lockstep/base/error.h>
#include <lockstep/base/text.h>
#include <lockstep/course/commands.h>
#include <lockstep/course/exercise_check.h>
#include <lockstep/course/exit_code.h>

#include <iostream>

namespace lockstep::course {
namespace {

int main_of(int argc, char** argv) {
  int exit_code = kOk;
  CLI::App app("Lockstep: data-parallel training, its pitfalls, and what names them", "lockstep");
  app.require_subcommand(1);
  app.footer(
      "Also, in a clone: ./lockstep test, bench, doctor; see ./lockstep --help.\n"
      "Exit codes: 0 as expected, 1 a verdict is wrong or a finding, 2 usage, 3 could not run, 77 "
      "skipped.");
  add_list_command(app, exit_code);
  add_run_command(app, exit_code);
  add_explain_command(app, exit_code);
  add_exercise_command(app, exit_code);
  add_diagnose_command(app, exit_code);
  add_matrix_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << filled(app.help(), 0);
    return kOk;
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + "; see --help");
  }
  return exit_code;
}

}  // namespace
}  // namespace lockstep::course

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    return course::main_of(argc, argv);
  } catch (const course::Interrupted& interrupted) {
    std::cerr << interrupted.what() << "\n";
    return course::kInterrupted;
  } catch (const UsageError& error) {
    std::cerr << filled(std::string("error: ") + error.what(), 2);
    return course::kUsage;
  } catch (const std::exception& error) {
    std::cerr << filled(std::string("error: ") + error.what(), 2);
    return course::kCouldNotRun;
  }
}
