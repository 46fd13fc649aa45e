// Trains a variant of the job, stops after half of its epochs, and goes on from the checkpoint.
//
//   gestures FILE [--settings plain|told] [--variants correct|SLUG] [--seeds N] [--ranks N] [--samples N] [--epochs N]
//   gestures --list
//
// FILE gets the accuracy. The setting `told` makes the calls that only the program can make (record/recorder.h);
// `plain` makes none. truths.json says which finding is right for each fault.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "../../benchmarks/ranks.h"
#include "gestures.h"

namespace {

using namespace lockstep;

struct Command {
  std::string file, setting = "plain", variant = "correct";
  int ranks = 2;
  gestures::Options job;
  bool list = false;
};

std::vector<std::string> variants() {
  std::vector<std::string> names{"correct"};
  names.insert(names.end(), gestures::kFaults.begin(), gestures::kFaults.end());
  return names;
}

void list() {
  for (const char* setting : {"plain", "told"})
    for (const auto& fault : gestures::kFaults) std::cout << setting << " " << fault << "\n";
}

void run_rank(Command command, const std::filesystem::path& folder) {
  torch::set_num_threads(1);
  command.job.checkpoint = folder / "gestures.pt";
  command.job.tells = command.setting == "told";
  auto group = init_process_group();
  gestures::train(group, command.job, command.variant, (command.job.epochs + 1) / 2);
  const double accuracy = gestures::train(group, command.job, command.variant, command.job.epochs);
  if (group->getRank() == 0) write_file(command.file, std::to_string(accuracy) + "\n");
  destroy_process_group(group);
}

void run_all(const std::vector<std::string>& words, const Command& command) {
  const TemporaryFolder folder("lockstep-gestures");
  benchmark::run_ranks(words, command.ranks, folder.path(), {}, std::chrono::minutes(5));
}

}  // namespace

int main(int argc, char** argv) {
  Command command;
  CLI::App app("A job that no lesson shaped, with faults that can be switched on");
  app.add_option("file", command.file, "where to write the accuracy");
  app.add_option("--settings", command.setting)->check(CLI::IsMember({"plain", "told"}));
  app.add_option("--variants,--forms", command.variant)->check(CLI::IsMember(variants()));
  app.add_option("--seeds", command.job.seed);
  app.add_option("--ranks", command.ranks)->check(CLI::Range(2, 16));
  app.add_option("--samples", command.job.samples)->check(CLI::Range(64, 100'000));
  app.add_option("--epochs", command.job.epochs)->check(CLI::Range(2, 1000));
  app.add_flag("--list", command.list, "say the settings and their faults, and run nothing");
  CLI11_PARSE(app, argc, argv);
  try {
    if (command.list) {
      list();
    } else if (command.file.empty()) {
      throw UsageError("name the file to write");
    } else if (const auto rank = benchmark::as_rank()) {
      run_rank(command, rank->folder);
    } else {
      run_all({argv, argv + argc}, command);
    }
    return kOk;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    launch::report_error(error);
    return dynamic_cast<const UsageError*>(&error) != nullptr ? kUsage : kCouldNotRun;
  }
}
