#include <lockstep/base/error.h>
#include <lockstep/base/exit_code.h>
#include <lockstep/base/text.h>
#include <lockstep/course/exercise_check.h>
#include <lockstep/course/nearest.h>
#include <lockstep/course/program.h>

#include <iostream>
#include <stdexcept>

namespace lockstep::course {
namespace {

// The last command that was named, and all of them as they were written.
std::pair<const CLI::App*, std::string> last_command(const CLI::App& app) {
  std::string command = "./lockstep";
  const CLI::App* last = &app;
  while (!last->get_subcommands().empty()) {
    last = last->get_subcommands().front();
    command += " " + last->get_name();
  }
  return {last, command};
}

[[noreturn]] void refuse_extras(const CLI::App& app) {
  const auto [last, command] = last_command(app);
  std::string all;
  std::vector<std::string> options;
  for (const auto* option : last->get_options())
    if (!option->get_lnames().empty()) options.push_back(option->get_name());
  for (const auto& extra : app.remaining(true)) {
    if (extra.rfind('-', 0) == 0)
      throw UsageError("there is no option " + extra + "; the nearest: " +
                       list(nearest(extra, options)) + ". See " + command + " --help");
    all += (all.empty() ? "" : " ") + extra;
  }
  throw UsageError("not expected: " + all + "; see " + command + " --help");
}

// Throws UsageError where the last command wants another after it, and got none or one that it has not.
void require_subcommand(const CLI::App& app) {
  const auto [last, command] = last_command(app);
  std::vector<std::string> names;
  for (const auto* each :
       last->get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); }))
    names.push_back(each->get_name());
  if (names.empty()) return;
  const auto extras = app.remaining(true);
  throw UsageError((extras.empty() ? command + " wants a subcommand"
                                   : command + " has no subcommand \"" + extras.front() + "\"") +
                   "; there are " + list(names) + ". See --help");
}

int answer(int argc, char** argv, const AddCommands& add_commands) {
  int exit_code = kOk;
  CLI::App app("Lockstep: data-parallel training, its pitfalls, and what names them", "lockstep");
  app.require_subcommand(1);
  app.footer(
      "Also, in a clone: ./lockstep test, bench, doctor; see ./lockstep --help.\n"
      "Exit codes: 0 as expected, 1 a verdict is wrong or a finding, 2 usage, 3 could not run, 77 "
      "skipped.");
  add_commands(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << filled(app.help(), 0);
    return kOk;
  } catch (const CLI::ExtrasError&) {
    refuse_extras(app);
  } catch (const CLI::ParseError& error) {
    require_subcommand(app);
    throw UsageError(std::string(error.what()) + "; see --help");
  }
  return exit_code;
}

// Throws where an answer did not reach anybody: a full disk, a closed standard output.
void finish_output() {
  if (!std::cout.flush())
    throw std::runtime_error("standard output could not be written, so some of the answer is lost");
}

}  // namespace

int program(int argc, char** argv, const AddCommands& add_commands) {
  try {
    const int exit_code = answer(argc, argv, add_commands);
    finish_output();
    return exit_code;
  } catch (const Interrupted& interrupted) {
    std::cerr << interrupted.what() << "\n";
    return kInterrupted;
  } catch (const UsageError& error) {
    std::cerr << filled(std::string("error: ") + error.what(), 2);
    return kUsage;
  } catch (const UnavailableError& error) {
    std::cerr << filled(std::string("skipped: ") + error.what(), 2);
    return kSkipped;
  } catch (const std::exception& error) {
    std::cerr << filled(std::string("error: ") + error.what(), 2);
    return kCouldNotRun;
  }
}

}  // namespace lockstep::course
