// ./lockstep diagnose: names what went wrong in a recorded run, or in the attempts of a job.
#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/base/exit_code.h>
#include <lockstep/base/json_text.h>
#include <lockstep/base/text.h>
#include <lockstep/course/commands.h>
#include <lockstep/course/lessons.h>
#include <lockstep/diagnose/diagnose.h>
#include <lockstep/diagnose/stall.h>
#include <lockstep/diagnose/text.h>
#include <lockstep/flight/diagnosis.h>
#include <lockstep/report/job.h>
#include <lockstep/report/json.h>
#include <lockstep/report/page.h>
#include <lockstep/report/places.h>
#include <lockstep/trace/attempts.h>
#include <lockstep/trace/json.h>
#include <lockstep/trace/levels.h>
#include <lockstep/trace/reader.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

namespace lockstep::course {
namespace {

void warn(const std::string& text) {
  std::cerr << filled(text, 2);
}

// Most detectors need every rank; that they found nothing without one is no comfort.
std::set<int> warn_of_missing_ranks(const std::filesystem::path& folder,
                                    const trace::Trace& trace) {
  const auto missing = report::missing_ranks(trace);
  const bool process = trace.ranks.front().participant.kind == "process";
  if (missing.empty()) return missing;
  warn("warning: " + folder.string() + " has the traces of " + std::to_string(trace.ranks.size()) +
       " of " + std::to_string(trace.world_size) + (process ? " ranks" : " devices") +
       "; missing: " +
       (process ? ranks_text({missing.begin(), missing.end()})
                : list(std::vector<int>(missing.begin(), missing.end()))) +
       ". Little can be told without them.");
  return missing;
}

// The number that an attempt's ranks have recorded; -1 = none.
std::int64_t attempt_number(const trace::Trace& trace) {
  std::int64_t number = -1;
  for (const auto& rank : trace.ranks)
    for (const auto& at : rank.all<trace::Attempt>()) number = at.event->restart_count;
  return number;
}

// The i-th is attempt_i beside the first one.
bool is_attempt(const std::vector<std::filesystem::path>& folders, std::size_t i) {
  const auto job = std::filesystem::weakly_canonical(folders.front()).parent_path();
  return std::filesystem::weakly_canonical(folders[i]) ==
         trace::attempt_folder(job, static_cast<int>(i));
}

// Folders that are named one by one are read as one job's: two jobs' would hide each other's faults.
void check_attempts(const std::vector<std::filesystem::path>& folders,
                    const std::vector<std::int64_t>& first_attempts) {
  std::int64_t before = -1;
  for (std::size_t i = 0; folders.size() > 1 && i < folders.size(); ++i) {
    const auto number = first_attempts[i];
    if (number < 0 && is_attempt(folders, i)) continue;
    if (number <= before)
      throw UsageError(
          folders[i].string() +
          (number < 0 ? " records no number of an attempt"
                      : " is of attempt " + std::to_string(number)) +
          ": several folders are read as the attempts of one job, in order. Diagnose other "
          "jobs one at a time; attempts without numbers go into one folder, as attempt_0, "
          "attempt_1 ...");
    before = number;
  }
}

// A snapshot of a job that still runs shows waits that may just not be over. Whether there is a rank that runs.
bool warn_of_running_ranks(const trace::Trace& trace) {
  std::vector<int> running;
  for (const auto& rank : trace.ranks)
    if (rank.runs) running.push_back(rank.participant.rank);
  if (running.empty()) return false;
  warn("note: " + ranks_text(running) + (running.size() > 1 ? " still run" : " still runs") +
       ". What is found is of this moment: a wait may just not be over. Look again later.");
  return true;
}

// A job that hangs until somebody ends it leaves no more than where its ranks were.
void note_where_it_was(const trace::Trace& trace, bool runs) {
  const auto place = diagnose::stall_of(trace, std::chrono::milliseconds{0});
  if (!place || place->culprits().empty()) return;
  const auto seconds = (monotonic_ns() - place->time_ns) / 1'000'000'000;
  warn("note: the job " + (runs ? "has been here for " + plural(seconds, "second") + ":"
                                : std::string("did not end by itself, and was here:")));
  warn("  " + diagnose::to_text(*place));
  if (!runs) warn("If it hung, that is why. If it was ended while all was well, it means nothing.");
}

// What is known of a job in which nothing was found, and that failed all the same.
void note_failures(const trace::Trace& trace) {
  for (const auto& end : trace.ends)
    if (end.how != "completed" && end.how != "stopped")
      warn("note: by its launcher's word rank " + std::to_string(end.rank) +
           " ended otherwise: " + end.how + ", exit code " + std::to_string(end.exit_code) +
           ". Nothing that was recorded explains it.");
  for (const auto& rank : trace.ranks)
    for (const auto& at : rank.all<trace::StoreCall>())
      if (at.event->error != 0)
        warn("note: rank " + std::to_string(rank.participant.rank) +
             " did not come through to the store (" + at.event->action + " " + at.event->address +
             ", port " + std::to_string(at.event->port) +
             "): " + std::strerror(static_cast<int>(at.event->error)));
}

struct DiagnoseOptions {
  std::vector<std::filesystem::path> folders;
  bool as_json = false, pictures = false, export_trace = false;
  std::optional<std::string> prefix;
  int level = trace::kLevels - 1;
};

int diagnose_folders(const DiagnoseOptions& options) {
  std::vector<trace::Trace> attempts;
  std::vector<std::int64_t> first_attempts;  // of each folder, by number
  std::set<std::filesystem::path> seen;
  std::set<int> missing;
  bool runs = false;
  for (const auto& job : options.folders) {
    const auto first = attempts.size();
    for (const auto& folder : trace::attempt_folders(job)) {
      if (!seen.insert(std::filesystem::weakly_canonical(folder)).second)
        throw UsageError(folder.string() + " is named twice; name each attempt's folder once");
      attempts.push_back(trace::read(folder));
      missing.merge(warn_of_missing_ranks(folder, attempts.back()));
      if (const auto text = report::may_be_of_two_runs(attempts.back()))
        warn("warning: " + folder.string() + ": " + *text + ".");
      runs = warn_of_running_ranks(attempts.back()) || runs;
    }
    first_attempts.push_back(attempt_number(attempts[first]));
  }
  check_attempts(options.folders, first_attempts);
  const auto trace = trace::at_level(trace::concatenate(std::move(attempts)), options.level);
  if (options.export_trace) {
    std::cout << trace::to_json(trace) << "\n";
    return kOk;
  }
  auto diagnosis = diagnose::diagnose(trace);
  const auto last = trace::attempt_folders(options.folders.back()).back();
  for (const auto& text : report::add_places(last, trace, diagnosis)) warn("warning: " + text);
  if (diagnosis.findings.empty()) {
    note_failures(trace);
    note_where_it_was(trace, runs);
  }
  if (options.as_json) {
    std::cout << (options.pictures ? report::job_json(trace, diagnosis, missing,
                                                      report::all_pages(source_folder()))
                                   : report::diagnosis_json(diagnosis, missing));
  } else {
    std::error_code none;
    std::cout << diagnose::to_text(diagnosis, std::filesystem::current_path(none).string());
  }
  if (!diagnosis.findings.empty()) return kFinding;
  // Nothing found of a part is no good news.
  return missing.empty() && diagnosis.incomplete.empty() ? kOk : kCouldNotRun;
}

bool holds_traces(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator items(folder);
  return std::any_of(begin(items), end(items),
                     [](const auto& item) { return item.path().extension() == ".trace"; });
}

// The dumps that a folder holds; none where it has traces of Lockstep's own.
std::vector<flight::DumpFile> find_dumps(const DiagnoseOptions& options) {
  for (const auto& folder : options.folders) {
    if (!std::filesystem::is_directory(folder)) break;
    if (!options.prefix && holds_traces(folder)) break;
    auto files = flight::find_dumps(folder, options.prefix);
    if (files.empty() && options.prefix)
      throw Error(folder.string() + " holds no dump named " + *options.prefix + "<rank>");
    if (files.empty()) break;
    if (options.folders.size() > 1)
      throw UsageError("flight-recorder dumps are of one moment: name one folder, not " +
                       std::to_string(options.folders.size()));
    if (options.pictures || options.export_trace)
      throw UsageError(
          "a page, or a trace as JSON, is made of traces (rank_*.trace); of a flight recorder's "
          "dumps, ./lockstep diagnose says all there is");
    return files;
  }
  return {};
}

int diagnose_dumps(const std::vector<flight::DumpFile>& files, bool as_json) {
  using nlohmann::json;
  constexpr std::size_t kMostFindings = 20, kMostNotes = 10;
  const auto diagnosis = flight::diagnose(flight::read_dumps(files));
  const auto& [findings, missing, notes, dumps, calls, groups] = diagnosis;
  if (as_json) {
    std::cout << json_text(json{{"findings", json::parse(report::findings_json(findings))},
                                {"missing_ranks", missing},
                                {"notes", notes},
                                {"dumps", dumps},
                                {"calls", calls},
                                {"groups", groups}},
                           2)
              << "\n";
  } else {
    const auto told = std::min(findings.size(), kMostFindings);
    std::cout << diagnose::to_text(std::span(findings).first(told));
    if (told < findings.size())
      std::cout << "And " << plural(findings.size() - told, "finding")
                << " more; --json has all.\n";
    if (findings.empty())
      std::cout << "Nothing found: the ranks agree on every call they still hold.\n";
    std::cout << wrapped("Read " + plural(dumps, "dump") + " of PyTorch's flight recorder, " +
                             plural(calls, "call") + " in " + plural(groups, "group") + ".",
                         "");
    for (std::size_t i = 0; i < std::min(notes.size(), kMostNotes); ++i)
      std::cout << wrapped("Note: " + notes[i], "");
    if (notes.size() > kMostNotes)
      std::cout << "And " << plural(notes.size() - kMostNotes, "note")
                << " more; --json has all.\n";
  }
  if (!findings.empty()) return kFinding;
  return missing.empty() ? kOk : kCouldNotRun;
}

}  // namespace

void add_diagnose_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<DiagnoseOptions>();
  auto* command =
      app.add_subcommand("diagnose",
                         "Name the pitfall from a folder of traces, or from those of a job's "
                         "attempts, in order");
  command
      ->add_option(
          "folder", options->folders,
          "Holds rank_*.trace, or dumps of PyTorch's flight recorder (comm_lib_trace_rank_*, "
          "nccl_trace_rank_*)")
      ->required();
  command->add_flag("--json", options->as_json, "Findings and every detector's state as JSON");
  command->add_flag("--pictures", options->pictures,
                    "With --json: also what the page of ./lockstep report FOLDER shows");
  command->add_flag("--export", options->export_trace, "The trace itself as JSON");
  command->add_option("--dump-prefix,--prefix", options->prefix,
                      "What the dumps' names have before the rank");
  // Of evaluation/recorded_runs.py, which scores detectors by how much they are shown. An empty group is not in --help.
  command->add_option("--level", options->level)
      ->check(CLI::Range(0, trace::kLevels - 1))
      ->group("");
  command->callback([options, &exit_code] {
    const auto dumps = find_dumps(*options);
    exit_code =
        dumps.empty() ? diagnose_folders(*options) : diagnose_dumps(dumps, options->as_json);
  });
}

}  // namespace lockstep::course
