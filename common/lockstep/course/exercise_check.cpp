#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/course/exercise_check.h>
#include <lockstep/course/file_lock.h>
#include <lockstep/diagnose/diagnose.h>
#include <lockstep/diagnose/moves.h>
#include <lockstep/trace/attempts.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <sstream>

namespace lockstep::course {
namespace {

// ---- whether a mended variant is right ----

// One run of a correct variant: where its lesson left the comparison report and the traces.
struct VariantRun {
  std::filesystem::path report;  // JSON
  std::filesystem::path traces;  // the variant's folder
};

nlohmann::json variant_of(const VariantRun& run) {
  return nlohmann::json::parse(read_file(run.report)).at("variants").at(0);
}

std::string figure(double value);
std::string figure(const nlohmann::json& value) {
  return value.is_number() ? figure(value.get<double>()) : "none";
}
std::string figure(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

// What a rank did, as often as it did it.
struct Work {
  std::size_t updates = 0, samples = 0, metrics = 0;
  std::int64_t moved = 0;  // elements, by collectives
};

Work work_of(const trace::ParticipantTrace& rank) {
  Work work;
  for (const auto& event : rank.events) {
    work.updates += event.is<trace::Update>() ? 1 : 0;
    work.metrics += event.is<trace::Metric>() ? 1 : 0;
    if (const auto* call = event.as<trace::Collective>())
      for (const auto size : call->sizes) work.moved += size;
    if (const auto* samples = event.as<trace::Samples>()) work.samples += samples->ids.size();
  }
  return work;
}

void compare_work(const trace::Trace& mended, const trace::Trace& reference,
                  std::vector<std::string>& wrong) {
  for (std::size_t r = 0; r < reference.ranks.size(); ++r) {
    if (r >= mended.ranks.size()) {
      wrong.push_back("rank " + std::to_string(r) + " left no trace");
      continue;
    }
    const auto mine = work_of(mended.ranks[r]), theirs = work_of(reference.ranks[r]);
    const auto at_least = [&](std::size_t made, std::size_t wanted, const std::string& what) {
      if (made < wanted)
        wrong.push_back("rank " + std::to_string(r) + " made " + std::to_string(made) + " " + what +
                        ", and " + std::to_string(wanted) + " are to be made: was work left out?");
    };
    at_least(mine.updates, theirs.updates, "updates");
    at_least(mine.samples, theirs.samples, "draws of a sample");
    // In fewer calls, or more, as it pleases; the little that a log or a check takes may be left out.
    if (10 * mine.moved < 9 * theirs.moved)
      wrong.push_back("rank " + std::to_string(r) + " sends " + std::to_string(mine.moved) +
                      " numbers through collectives, and " + std::to_string(theirs.moved) +
                      " are to be sent: was a collective left out?");
    at_least(mine.metrics, theirs.metrics, "reports of a metric");
  }
}

// Of all ranks, the mean; nothing where there are none or one is no number.
std::optional<double> last_loss(const nlohmann::json& variant) {
  double sum = 0;
  int count = 0;
  for (const auto& rank : variant.at("losses")) {
    if (rank.empty()) continue;
    if (!rank.back().is_number()) return std::nullopt;
    sum += rank.back().get<double>();
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

void compare_losses(const nlohmann::json& mended, const nlohmann::json& reference,
                    std::vector<std::string>& wrong) {
  constexpr double kTolerance = 0.15;  // relative: another way to mend may draw in another order
  const auto right = last_loss(reference);
  if (!right) return;
  const auto mine = last_loss(mended);
  if (!mine || std::abs(*mine - *right) > kTolerance * std::max(std::abs(*right), 0.1))
    wrong.push_back("the last loss is " + (mine ? figure(*mine) : "no number") +
                    "; a right variant has " + figure(*right));
}

// Where the right variant moves its parameters by the gradient that it recorded, the mended one does, too.
void compare_updates(const trace::Trace& mended, const trace::Trace& reference,
                     std::vector<std::string>& wrong) {
  const auto right = diagnose::sgd_factor(diagnose::Run(reference));
  if (!right) return;
  const auto mine = diagnose::sgd_factor(diagnose::Run(mended));
  if (!mine || std::abs(*mine - *right) > 0.02 * std::abs(*right))
    wrong.push_back("the parameters do not move by the gradient that the optimizer was given" +
                    (mine ? ", but by " + figure(*mine / *right) + " times that" : std::string()));
}

void judge_oracles(const nlohmann::json& variant, std::vector<std::string>& wrong) {
  const auto outcome = variant.at("outcome").get<std::string>();
  if (outcome != "completed")
    wrong.push_back("it did not complete: " + outcome + "\n" + variant.value("reason", ""));
  std::set<std::string> told;  // several pitfalls may have one oracle
  for (const auto& oracle : variant.at("oracles"))
    if (oracle.at("manifested").get<bool>() && outcome == "completed")
      told.insert(oracle.at("metric").get<std::string>() + ": expected " +
                  figure(oracle.at("expected")) +
                  (oracle.at("tolerance") == 0 ? "" : " within " + figure(oracle.at("tolerance"))) +
                  ", observed " + figure(oracle.at("observed")));
  wrong.insert(wrong.end(), told.begin(), told.end());
}

void judge_findings(const std::string& slug, const diagnose::Diagnosis& mended,
                    const diagnose::Diagnosis& reference, std::vector<std::string>& wrong) {
  std::set<std::string> accepted;  // advice that the right variant has, too
  for (const auto& finding : reference.findings) accepted.insert(finding.pitfall);
  for (const auto& finding : mended.findings)
    if (accepted.count(finding.pitfall) == 0)
      wrong.push_back("found: " + finding.pitfall + ", " + ranks_text(finding.ranks) + ": " +
                      finding.evidence);
  const auto state_of = [&](const diagnose::Diagnosis& diagnosis) {
    const auto row = std::find_if(diagnosis.rows.begin(), diagnosis.rows.end(),
                                  [&](const auto& each) { return each.slug == slug; });
    return row == diagnosis.rows.end() ? diagnose::State::not_triggered : row->verdict.state;
  };
  if (state_of(reference) == diagnose::State::clean &&
      state_of(mended) == diagnose::State::not_triggered)
    wrong.push_back("it no longer tells what " + slug +
                    " is seen by: keep the library's sampler, optimizer, loss and take()");
}

// What is wrong with `mended`, in words for the person who mended it; empty where nothing is. `reference` is the
// lesson's own correct variant on as many ranks with the same seed. Goes by the lesson's oracles, by the detectors, and by
// the reference, so that work which was left out, or a figure that was written down, is no solution. Throws Error for
// what cannot be read.
std::vector<std::string> judge(const std::string& slug, const VariantRun& mended,
                               const VariantRun& reference) {
  std::vector<std::string> wrong;
  const auto mine = variant_of(mended), theirs = variant_of(reference);
  if (theirs.at("outcome") == "skipped")
    throw UnavailableError("this exercise cannot be judged here: " + theirs.value("reason", ""));
  if (theirs.at("outcome") != "completed")
    throw Error("the lesson's own correct variant did not complete: " + theirs.value("reason", ""));
  judge_oracles(mine, wrong);
  if (!wrong.empty()) return wrong;
  const auto trace = trace::read_job(mended.traces), right = trace::read_job(reference.traces);
  judge_findings(slug, diagnose::diagnose(trace), diagnose::diagnose(right), wrong);
  compare_work(trace, right, wrong);
  compare_losses(mine, theirs, wrong);
  compare_updates(trace, right, wrong);
  return wrong;
}

// ---- the runs ----

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
