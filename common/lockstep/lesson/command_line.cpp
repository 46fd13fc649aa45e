#include <lockstep/base/error.h>
#include <lockstep/base/text.h>
#include <lockstep/lesson/command_line.h>

#include <CLI/CLI.hpp>
#include <iostream>

namespace lockstep {
namespace {

std::string variant_list(const Lesson& lesson) {
  std::string text = "Variants:\n";
  const auto line = [&](const std::string& name, const std::string& what) {
    constexpr std::size_t kName = 28;
    const auto gap = name.size() > kName ? "\n" + std::string(kName + 4, ' ')
                                         : std::string(kName + 2 - name.size(), ' ');
    text += "  " + name + gap + what + "\n";
  };
  for (const auto& part : lesson.parts) {
    line(part.correct_name(lesson.parts.size() == 1), "right");
    for (const auto& broken : part.broken) line(broken.slug, broken.what);
    for (const auto& near : part.near_misses) line(near.name, "right, though " + near.naive_check);
  }
  return text;
}

}  // namespace

LessonOptions parse_command_line(int argc, char** argv, const Lesson& lesson) {
  LessonOptions options;
  CLI::App app(lesson.name + ": " + lesson.title);
  app.footer(
      variant_list(lesson) +
      "Exit codes: 0 as expected, 1 a verdict is wrong, 2 usage, 3 could not run, 77 skipped, "
      "124 a variant ran into --timeout.");
  app.add_option("--variant", options.variant,
                 "Which variant to run: correct (all correct ones), a variant's name, or all")
      ->capture_default_str();
  app.add_option(
         "--world-size", options.world_size,
         "Ranks, or devices, 1 to 16 (default " + std::to_string(lesson.default_world_size) + ")")
      ->check(CLI::Range(1, 16));
  app.add_option("--backend", options.backend, "gloo, or nccl with one GPU a rank")
      ->check(CLI::IsMember({"gloo", "nccl"}))
      ->capture_default_str();
  app.add_flag("--share-gpu", options.share_gpu,
               "With nccl and fewer GPUs than ranks: ranks share them, right but slow");
  app.add_flag("--check", options.check,
               "Compare each collective across the ranks before it runs, and say how they differ");
  app.add_option("--seed", options.seed, "Of data order, initial weights and everything random")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 53))
      ->capture_default_str();
  app.add_option("--timeout", options.timeout_s, "Seconds that one variant may take")
      ->check(CLI::Range(1.0, 86400.0))
      ->capture_default_str();
  app.add_flag("--full", options.full, "The article's own size instead of a quick one");
  app.add_option("--json", options.json, "Write the comparison report to this file");
  app.add_option(
      "--earlier", options.earlier,
      "A report that tells how long each variant takes (default: that of --json, if there)");
  app.add_option("--trace", options.trace, "Keep every run's traces in this folder");
  app.add_flag("--describe", options.describe, "Print the variants as JSON and leave");
  app.add_option("--folder", options.folder,
                 "Under torchrun, srun or mpirun: a new folder that all ranks reach");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << filled(app.help(), 0);
    throw CommandLineDone{};
  } catch (const CLI::ExtrasError&) {
    std::string extras;  // CLI11 tells them last to first
    for (const auto& each : app.remaining()) extras += " " + each;
    std::vector<std::string> names;
    for (const auto* option : app.get_options()) names.push_back(option->get_name());
    throw UsageError("not expected:" + extras + "; there are " + list(names));
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + "; see --help");
  }
  if (options.share_gpu && options.backend != "nccl")
    throw UsageError("--share-gpu is for --backend nccl; see --help");
  return options;
}

std::chrono::milliseconds operation_timeout(const LessonOptions& options) {
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(std::min(30.0, options.timeout_s / 2) * 1000));
}

std::vector<std::string> rank_arguments(const LessonOptions& options, const std::string& variant,
                                        int world_size, const std::filesystem::path& folder) {
  std::vector<std::string> arguments = {"--variant",    variant,
                                        "--world-size", std::to_string(world_size),
                                        "--backend",    options.backend,
                                        "--seed",       std::to_string(options.seed),
                                        "--timeout",    std::to_string(options.timeout_s),
                                        "--folder",     folder.string()};
  if (options.full) arguments.push_back("--full");
  if (options.check) arguments.push_back("--check");
  if (options.share_gpu) arguments.push_back("--share-gpu");
  return arguments;
}

}  // namespace lockstep
