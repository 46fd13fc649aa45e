// ./lockstep run: lessons, each in all its variants.
#include <lockstep/base/clock.h>
#include <lockstep/base/countdown.h>
#include <lockstep/base/error.h>
#include <lockstep/base/exit_code.h>
#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/course/commands.h>
#include <lockstep/course/lessons.h>
#include <lockstep/course/nearest.h>
#include <lockstep/course/pitfall_source.h>
#include <lockstep/course/progress.h>
#include <lockstep/course/prose.h>
#include <lockstep/course/run_sections.h>
#include <lockstep/report/earlier.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

namespace lockstep::course {
namespace {

// The value of an option among those for the lesson, "--variant X" or "--variant=X".
std::string value_of(const std::vector<std::string>& arguments, const std::string& option) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == option && i + 1 < arguments.size()) return arguments[i + 1];
    if (arguments[i].rfind(option + "=", 0) == 0) return arguments[i].substr(option.size() + 1);
  }
  return "";
}

// Of all lessons, those that have a variant of this name.
std::vector<LessonEntry> with_variant(const std::vector<LessonEntry>& lessons,
                                      const std::string& variant) {
  std::vector<LessonEntry> having;
  std::vector<std::string> names;
  for (const auto& lesson : lessons)
    for (const auto& each : describe(lesson).variants) {
      if (each.name == variant) having.push_back(lesson);
      names.push_back(each.name);
    }
  if (having.empty())
    throw UsageError("no lesson has a variant \"" + variant +
                     "\"; the nearest: " + list(nearest(variant, names)) +
                     ". ./lockstep run LESSON --help lists a lesson's variants");
  return having;
}

bool has(const std::vector<std::string>& arguments, const std::string& option) {
  return std::find(arguments.begin(), arguments.end(), option) != arguments.end();
}

// Under torchrun and its like every rank comes here: no story is told W times.
bool is_a_rank() {
  return std::getenv("RANK") != nullptr || std::getenv("SLURM_PROCID") != nullptr ||
         std::getenv("OMPI_COMM_WORLD_RANK") != nullptr;
}

// Every variant: a single one's run, or its report, is none of the lesson.
bool is_whole(const std::vector<std::string>& rest) {
  const auto variant = value_of(rest, "--variant");
  return variant.empty() || variant == "all";
}

// What is to be told of before each lesson; a single one tells of its variants itself.
Countdown countdown_of(const std::vector<LessonEntry>& lessons,
                       const std::filesystem::path& reports, const std::vector<std::string>& rest) {
  std::vector<Countdown::Item> items;
  for (const auto& lesson : lessons) {
    double seconds = 0;
    if (is_whole(rest))
      for (const auto& [variant, its] :
           report::seconds_by_variant(reports / (lesson.name + ".json")))
        seconds += its;
    items.push_back({lesson.name, seconds > 0 ? std::optional(seconds) : std::nullopt});
  }
  auto output = lessons.size() > 1 ? Countdown::standard_error() : Countdown::Output{};
  output.rewrites = false;  // the lesson's own line comes below
  return Countdown("lesson", std::move(items), std::move(output));
}

void record(const LessonEntry& lesson) {
  Progress().change(lesson.name, hash_of_sources(lesson.folder),
                    [](LessonProgress& done) { done.ran = today(); });
}

// The folder that ./lockstep report reads when it is told of none.
std::filesystem::path standard_reports() {
  return source_folder() / "reports" / "out";
}

// ---- what runs came to, from their comparison reports: one line after a lesson, a few after many ----

struct Verdicts {
  std::int64_t expected = 0;
  std::vector<std::string> other;  // "LESSON VARIANT (verdict)"
  std::map<std::pair<std::string, std::string>, std::int64_t> skipped;  // by lesson and reason

  std::int64_t number_skipped() const {
    std::int64_t number = 0;
    for (const auto& [which, count] : skipped) number += count;
    return number;
  }
};

void add(Verdicts& verdicts, const std::string& lesson, const std::filesystem::path& report) {
  const auto json = nlohmann::json::parse(read_file(report));
  for (const auto& variant : json.at("variants")) {
    const auto verdict = variant.at("verdict").get<std::string>();
    if (verdict == "as-expected")
      ++verdicts.expected;
    else if (verdict == "skipped")
      ++verdicts.skipped[{lesson, variant.value("reason", "")}];
    else
      verdicts.other.push_back(lesson + " " + variant.at("name").get<std::string>() + " (" +
                               verdict + ")");
  }
}

std::string duration(double seconds) {
  const auto whole = std::llround(seconds);
  const auto minutes = whole / 60;
  return (minutes > 0 ? std::to_string(minutes) + " min " : "") + std::to_string(whole % 60) + " s";
}

void say(const std::string& line) {
  std::cout << filled("  " + line + "\n", 2);
}

// "4 variants ended as expected, 7 were skipped.", of a report.
std::string verdict_on(const std::filesystem::path& report) {
  Verdicts verdicts;
  add(verdicts, "", report);
  if (!verdicts.other.empty()) return "A variant did not end as expected: see above.";
  if (verdicts.skipped.empty()) return "Every variant ended as expected.";
  const auto skipped = verdicts.number_skipped();
  return plural(verdicts.expected, "variant") + " ended as expected, " + std::to_string(skipped) +
         (skipped == 1 ? " was" : " were") + " skipped.";
}

struct RunSummary {
  std::filesystem::path reports;         // the folder with a report of each lesson that ran
  std::vector<std::string> ran;          // lessons that wrote a report
  std::vector<std::string> skipped;      // lessons that could not start here, and said why
  std::vector<std::string> did_not_run;  // lessons that ended with an error, without a report
  double seconds = 0;
};

// How many variants ended as expected, which did not, which were skipped and why, how long it took, and where the
// reports are.
void say_summary(const RunSummary& summary) {
  Verdicts verdicts;
  for (const auto& lesson : summary.ran)
    add(verdicts, lesson, summary.reports / (lesson + ".json"));
  const auto other = static_cast<std::int64_t>(verdicts.other.size());
  const auto skipped = verdicts.number_skipped();
  say_heading("Summary");
  const auto lessons = summary.ran.size() + summary.skipped.size() + summary.did_not_run.size();
  say(plural(static_cast<std::int64_t>(lessons), "lesson") + ", " +
      plural(verdicts.expected + other + skipped, "variant") + ": " +
      std::to_string(verdicts.expected) + " as expected, " +
      (other > 0 ? std::to_string(other) + " not as expected, " : "") + std::to_string(skipped) +
      " skipped; " + duration(summary.seconds));
  if (other > 0) say("not as expected: " + list(verdicts.other));
  for (const auto& [which, count] : verdicts.skipped)
    say("skipped: " + plural(count, "variant") + " of " + which.first + ": " + which.second);
  if (!summary.skipped.empty())
    say("skipped, no variant ran: " + list(summary.skipped) + ": see above");
  if (!summary.did_not_run.empty()) say("did not run: " + list(summary.did_not_run));
  const auto folder = summary.reports.lexically_normal();
  say("reports: " + folder.string() + "; one page of them: ./lockstep report" +
      (folder == standard_reports().lexically_normal() ? "" : " --reports " + folder.string()));
}

// ---- the runs ----

// When a file was written; the least time if it is not there.
std::filesystem::file_time_type written_at(const std::filesystem::path& file) {
  std::error_code missing;
  return std::filesystem::last_write_time(file, missing);
}

// Every lesson's report goes to `reports`, unless the caller named a file for a single one. Several are summed up.
int run(const std::vector<LessonEntry>& lessons, const std::string& wanted,
        const std::filesystem::path& reports, const std::vector<std::string>& rest) {
  std::vector<LessonEntry> chosen = lessons;
  if (wanted != "all") {
    chosen = {find_lesson(lessons, wanted)};
  } else if (const auto variant = value_of(rest, "--variant");
             !variant.empty() && variant != "all" && variant != "correct") {
    chosen = with_variant(lessons, variant);
  }
  const bool own_file = !value_of(rest, "--json").empty();
  if (own_file && chosen.size() > 1)
    throw UsageError("--json names one file, and `run all` writes one a lesson");
  if (!own_file) std::filesystem::create_directories(reports);
  const bool counts = is_whole(rest) && !has(rest, "--describe") && !is_a_rank();
  auto countdown = countdown_of(chosen, reports, rest);
  int worst = kOk, skipped = 0;
  RunSummary summary{.reports = reports};
  const auto began = monotonic_ns();
  for (const auto& lesson : chosen) {
    countdown.next();
    auto arguments = rest;
    const auto report = reports / (lesson.name + ".json");
    if (!own_file) arguments.insert(arguments.end(), {"--json", report});
    const auto earlier = written_at(report);
    const int code = run_program(lesson.program, arguments);
    if (code == kUsage || code > 128) return code;  // the same for the rest; or interrupted
    (written_at(report) != earlier ? summary.ran
     : code == kSkipped            ? summary.skipped
                                   : summary.did_not_run)
        .push_back(lesson.name);
    if (counts && (code == kOk || code == kFinding)) record(lesson);
    skipped += code == kSkipped;
    if (code != kSkipped) worst = std::max(worst, code);
  }
  if (chosen.size() > 1 && !has(rest, "--describe") && !is_a_rank()) {
    summary.seconds = static_cast<double>(monotonic_ns() - began) * 1e-9;
    say_summary(summary);
  }
  return skipped == static_cast<int>(chosen.size()) ? static_cast<int>(kSkipped) : worst;
}

// The same arguments with another variant and another file for the report.
std::vector<std::string> other_variant(const std::vector<std::string>& rest,
                                       const std::string& variant,
                                       const std::filesystem::path& report) {
  std::vector<std::string> arguments;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    const bool taken = rest[i] == "--variant" || rest[i] == "--json";
    if (taken) ++i;
    if (taken || rest[i].rfind("--variant=", 0) == 0 || rest[i].rfind("--json=", 0) == 0) continue;
    arguments.push_back(rest[i]);
  }
  arguments.insert(arguments.end(), {"--variant", variant, "--json", report.string()});
  return arguments;
}

void require_variant(const LessonEntry& lesson, const Description& description,
                     const std::string& variant) {
  if (variant.empty() || variant == "all" || variant == "correct") return;
  std::vector<std::string> names;
  for (const auto& each : description.variants) {
    if (each.name == variant) return;
    names.push_back(each.name);
  }
  throw UsageError("there is no variant \"" + variant + "\" in " + lesson.name +
                   "; the nearest: " + list(nearest(variant, names)) + ". ./lockstep run " +
                   lesson.name.substr(0, 2) + " --help lists them all");
}

// Whether the lesson will take these arguments: nothing is told before an error in them.
bool will_run(const LessonEntry& lesson, const std::vector<std::string>& rest,
              const std::filesystem::path& scratch) {
  auto dry = rest;
  dry.emplace_back("--describe");
  if (run_quietly(lesson.program, dry, scratch / "log") != kOk) return false;
  const auto file = value_of(rest, "--json");
  return file.empty() ||
         std::filesystem::is_directory(std::filesystem::absolute(file).parent_path());
}

// One lesson, told as one: what it is about, its runs, what was seen and why.
int tell(const LessonEntry& lesson, const std::filesystem::path& reports,
         std::vector<std::string> rest) {
  const auto variant = value_of(rest, "--variant");
  const auto named = value_of(rest, "--json");
  const auto folder = is_whole(rest) ? reports : reports / "variants";
  const auto report =
      named.empty() ? folder / (lesson.name + ".json") : std::filesystem::path(named);
  const TemporaryFolder beside("lockstep-run");
  const auto description = describe(lesson);
  require_variant(lesson, description, variant);
  if (!will_run(lesson, rest, beside.path()))
    return run_program(lesson.program, rest);  // which says what is wrong
  const auto correct = correct_variant_of(description, variant);
  const auto slug = correct.empty() ? "" : variant;
  say_before(lesson, slug);
  if (value_of(rest, "--earlier").empty())
    rest.insert(rest.end(), {"--earlier", reports / (lesson.name + ".json")});
  const int code = run({lesson}, lesson.name, folder, rest);
  if (code != kOk && code != kFinding) return code;
  std::vector<std::filesystem::path> seen{report};
  if (!correct.empty()) {
    seen.push_back(beside.path() / "correct.json");
    std::cerr << "the correct variant, to compare with ...\n";
    const int right = run_quietly(lesson.program, other_variant(rest, correct, seen.back()),
                                  beside.path() / "log");
    if (right != kOk && right != kFinding) return right;
  }
  say_after(lesson, seen, slug);
  std::cout << "\n" << wrapped(verdict_on(report) + " The report: " + report.string(), "");
  return code;
}

// Somebody who names a pitfall means its variant.
void refuse_pitfall(const std::vector<LessonEntry>& lessons, const std::string& wanted) {
  if (std::any_of(lessons.begin(), lessons.end(),
                  [&](const auto& lesson) { return is_named(lesson, wanted); }))
    return;
  for (const auto& pitfall : find_pitfalls(source_folder()))
    if (pitfall.slug == wanted)
      throw UsageError("\"" + wanted + "\" is a variant: ./lockstep run " +
                       pitfall.lesson.substr(0, 2) + " --variant " + wanted);
}

struct RunOptions {
  std::string lesson = "all";
  std::filesystem::path reports = standard_reports();
};

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<RunOptions>();
  auto* command =
      app.add_subcommand("run", "Run a lesson, or all of them; further options go to the lesson");
  command->set_help_flag("");  // `run LESSON --help` is the lesson's
  command->add_option("lesson", options->lesson, "05_set_epoch, 05, set_epoch, or all")
      ->capture_default_str();
  command->add_option("--reports", options->reports, "Folder for the JSON reports")
      ->capture_default_str();
  command->allow_extras();
  command->callback([options, command, &exit_code] {
    const auto rest = command->remaining();
    const bool help = std::find(rest.begin(), rest.end(), "--help") != rest.end() ||
                      std::find(rest.begin(), rest.end(), "-h") != rest.end();
    if (help && options->lesson == "all") {
      std::cout << filled(command->help("", CLI::AppFormatMode::Sub), 0)
                << "./lockstep run LESSON --help shows a lesson's options and variants.\n"
                   "./lockstep run --python --help: the pitfalls' programs in Python.\n";
      return;
    }
    const auto lessons = lessons_of_clone();
    if (options->lesson != "all") refuse_pitfall(lessons, options->lesson);
    if (options->lesson == "all")
      exit_code = run(lessons, options->lesson, options->reports, rest);
    else if (const auto lesson = find_lesson(lessons, options->lesson); help)
      exit_code = run_program(lesson.program, {"--help"});
    else if (has(rest, "--describe") || is_a_rank())
      exit_code = run({lesson}, lesson.name, options->reports, rest);
    else
      exit_code = tell(lesson, options->reports, rest);
  });
}

}  // namespace lockstep::course
