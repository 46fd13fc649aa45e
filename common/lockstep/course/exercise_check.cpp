#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/course/exercise_check.h>
#include <lockstep/course/file_lock.h>
#include <lockstep/course/judge.h>

#include <algorithm>
#include <csignal>
#include <future>
#include <optional>
#include <random>
#include <sstream>

namespace lockstep::course {
namespace {

constexpr int kTimeout = 40;  // s, of one run: one that hangs is ended by its own launcher

// The correct variant of the part that has the pitfall, and the least ranks it can show on.
struct Reference {
  std::string name;
  int least_ranks = 1, default_ranks = 1;
};

Reference reference_of(const Exercise& exercise) {
  const auto described = describe(exercise.lesson);
  Reference reference{.name = correct_variant_of(described, exercise.pitfall.slug),
                      .default_ranks = described.default_world_size};
  for (const auto& each : described.variants)
    if (each.name == exercise.pitfall.slug) reference.least_ranks = each.min_world_size;
  if (reference.name.empty())
    throw Error(exercise.lesson.name + " has no correct variant beside " + exercise.pitfall.slug);
  return reference;
}

struct Setting {
  int world_size = 2;
  unsigned seed = 0;
};

std::string text_of(const Setting& setting) {
  return std::to_string(setting.world_size) + (setting.world_size == 1 ? " rank" : " ranks") +
         ", seed " + std::to_string(setting.seed);
}

std::vector<Setting> settings_of(const Reference& reference) {
  std::random_device dice;
  const int fewest = std::max(reference.least_ranks, reference.default_ranks);
  const int more = fewest == 1 ? 1 : fewest + 1 + static_cast<int>(dice() % 2);
  return {{fewest, dice() % 1000 + 1}, {more, dice() % 1000 + 1}};
}

VariantRun run_variant(const std::filesystem::path& program, const Exercise& exercise,
                       const Reference& variant, const Setting& setting,
                       const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  const VariantRun run{folder / "report.json", folder / exercise.lesson.name / variant.name};
  const int code =
      run_quietly(program,
                  {"--variant", variant.name, "--world-size", std::to_string(setting.world_size),
                   "--seed", std::to_string(setting.seed), "--timeout", std::to_string(kTimeout),
                   "--json", run.report.string(), "--trace", folder.string()},
                  folder / "log");
  if (code > 128 && code != 128 + SIGABRT) throw Interrupted();
  if (!std::filesystem::exists(run.report))
    throw Error(program.filename().string() + " ended with exit code " + std::to_string(code) +
                " and left no report:\n" + read_file(folder / "log"));
  return run;
}

// What the compiler says is wrong, not the commands that were run; "" where it says nothing.
std::string errors_in(const std::string& log) {
  std::string errors, line;
  int left = 0;
  for (const char c : log) {
    line += c;
    if (c != '\n') continue;
    if (line.find("error:") != std::string::npos) left = 4;  // with the line of code and the caret
    if (left > 0 && errors.size() < 2000) errors += line;
    left -= left > 0 ? 1 : 0;
    line.clear();
  }
  return errors;
}

// The build tool's exit code; what it said is in `log`.
int build_target(const std::filesystem::path& build, const std::string& target,
                 const std::filesystem::path& log) {
  const int code = run_quietly(
      LOCKSTEP_CMAKE, {"--build", build.string(), "--target", target, "--parallel", "2"}, log);
  if (code > 128 || read_file(log).find("interrupted by user") != std::string::npos)
    throw Interrupted();
  return code;
}

// "train(" of a function: what the rest of the lesson calls.
std::string signature_of(const std::string& function) {
  std::istringstream lines(function);
  for (std::string line; std::getline(lines, line);)
    if (const auto at = line.find('('); at != std::string::npos && line.rfind("//", 0) != 0)
      return line.substr(line.rfind(' ', at) + 1, at - line.rfind(' ', at));
  return "";
}

// The mended program, in a folder of its own: another check may build the same target for another text meanwhile.
// Nothing, and what the compiler said, where the text is no program.
std::optional<std::filesystem::path> build_mended(const Exercise& exercise,
                                                  const std::string& mended,
                                                  const std::filesystem::path& folder,
                                                  std::string& compiler) {
  const auto build = exercise.lesson.program.parent_path().parent_path();
  const auto stem = exercise.pitfall.file.stem().string();
  const auto target = "exercise_" + exercise.lesson.name + "_" + stem;
  const FileLock lock(build / "exercises" / "lock");
  write_file(build / "exercises" / exercise.lesson.name / (stem + ".cpp"), woven(exercise, mended));
  const auto log = folder / "build.log";
  if (build_target(build, target, log) != 0) {
    compiler = errors_in(read_file(log));
    if (compiler.empty())
      throw Error("the exercise could not be built, and no compiler says why:\n" + read_file(log));
    return std::nullopt;
  }
  std::filesystem::copy_file(build / "exercises" / target, folder / target);
  return folder / target;
}

}  // namespace

CheckResult check(const Exercise& exercise, const std::string& mended,
                  const Countdown::Output& output) {
  const auto build = exercise.lesson.program.parent_path().parent_path();
  const auto head = signature_of(code_of(exercise.pitfall).right);
  if (mended.find(head) == std::string::npos)
    return {{exercise.file.filename().string() + " no longer has the function " + head + "...)"},
            ""};
  const TemporaryFolder folder("lockstep-exercise");
  {
    Countdown countdown("build", {{exercise.lesson.name}}, output);  // which may wait, or take long
    countdown.next();
    const FileLock lock(build / "exercises" / "lock");
    const auto log = folder.path() / "lesson.log";
    if (build_target(build, exercise.lesson.name, log) != 0)
      throw Error(exercise.lesson.name + " cannot be built:\n" + read_file(log));
  }
  const auto variant = reference_of(exercise);
  const auto settings = settings_of(variant);

  std::vector<Countdown::Item> steps{{"building your code, and running the lesson's own"}};
  for (const auto& setting : settings) steps.push_back({"running your code: " + text_of(setting)});
  Countdown countdown("step", steps, output);
  countdown.next();
  CheckResult result;
  auto building = std::async(std::launch::async, [&] {
    return build_mended(exercise, mended, folder.path(), result.compiler);
  });
  std::vector<VariantRun> references;
  for (std::size_t i = 0; i < settings.size(); ++i)
    references.push_back(run_variant(exercise.lesson.program, exercise, variant, settings[i],
                                     folder.path() / ("reference_" + std::to_string(i))));
  const auto program = building.get();
  for (std::size_t i = 0; program && i < settings.size() && result.wrong.empty(); ++i) {
    countdown.next();
    const auto run = run_variant(*program, exercise, variant, settings[i],
                                 folder.path() / ("mended_" + std::to_string(i)));
    for (const auto& each : judge(exercise.pitfall.slug, run, references[i]))
      result.wrong.push_back("on " + text_of(settings[i]) + ": " + each);
  }
  return result;
}

}  // namespace lockstep::course
