// ./lockstep compare: two recorded runs of what should be the same training, and what differs first.
#include <lockstep/base/exit_code.h>
#include <lockstep/compare/compare.h>
#include <lockstep/course/commands.h>

#include <filesystem>
#include <iostream>
#include <memory>

namespace lockstep::course {
namespace {

struct Options {
  std::filesystem::path a, b;
  bool as_json = false;
};

int exit_code_of(compare::Answer answer) {
  if (answer == compare::Answer::different) return kFinding;
  return answer == compare::Answer::undecided ? kCouldNotRun : kOk;
}

int compare_folders(const Options& options) {
  const auto found = compare::compare_folders(options.a, options.b);
  std::cout << (options.as_json ? compare::to_json(found, options.a.string(), options.b.string())
                                : compare::to_text(found, options.a.string(), options.b.string()));
  return exit_code_of(found.answer);
}

}  // namespace

void add_compare_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand(
      "compare", "Say until where two recorded runs agree, and what differs first");
  command
      ->add_option("a", options->a, "A run that is right: holds rank_*.trace, or a job's attempts")
      ->required();
  command->add_option("b", options->b, "The run to compare with it")->required();
  command->add_flag("--json", options->as_json, "All that was compared as JSON");
  command->footer(
      "./lockstep compare A B --html FILE also writes a page with the distances by step and "
      "layer.\n"
      "Exit codes: 0 equal, to the bit or to rounding; 1 they differ; 2 wrong use, or a trace that "
      "cannot be "
      "read; 3 it cannot be decided.");
  command->callback([options, &exit_code] { exit_code = compare_folders(*options); });
}

}  // namespace lockstep::course
