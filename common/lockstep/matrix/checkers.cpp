#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/diagnose.h>
#include <lockstep/launch/launch.h>
#include <lockstep/matrix/checkers.h>
#include <lockstep/trace/attempts.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lockstep::matrix {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// By which a shell says that it has started nothing.
constexpr int kNotExecutable = 126, kNotFound = 127;

bool looked(const diagnose::Diagnosis& diagnosis, const std::string& pitfall) {
  return std::any_of(diagnosis.rows.begin(), diagnosis.rows.end(), [&](const auto& row) {
    return (pitfall.empty() || row.slug == pitfall) &&
           row.verdict.state != diagnose::State::not_triggered;
  });
}

// The traces alone, under names that say nothing.
void copy_blinded(const fs::path& from, const fs::path& to) {
  for (const auto& entry : fs::recursive_directory_iterator(from)) {
    if (entry.path().extension() != ".trace") continue;
    const auto target = to / fs::relative(entry.path(), from);
    fs::create_directories(target.parent_path());
    fs::copy_file(entry.path(), target);
  }
}

Named finding_of(const json& text) {
  Named named;
  named.pitfall = text.at("pitfall");
  named.advice = text.value("severity", "violation") == "advice";
  named.ranks = text.value("ranks", std::vector<int>{});
  named.step = text.value("step", std::int64_t{-1});
  return named;
}

Answer answer_of(const json& text) {
  Answer answer;
  if (text.value("not_triggered", false)) answer.state = Answer::State::not_triggered;
  if (answer.state == Answer::State::answered || text.contains("findings"))
    for (const auto& finding : text.at("findings")) answer.findings.push_back(finding_of(finding));
  return answer;
}

}  // namespace

int level_needed(const std::string& pitfall) {
  const auto* detector = diagnose::detector_of(pitfall);
  return detector == nullptr ? 0 : detector->lowest_level();
}

Answer ask_detectors(const Case& one, int level) {
  const auto diagnosis = diagnose::diagnose(trace::at_level(trace::read_job(one.folder), level));
  Answer answer;
  for (const auto& finding : diagnosis.findings)
    answer.findings.push_back({finding.pitfall, finding.severity == diagnose::Severity::advice,
                               finding.ranks, finding.step});
  if (!looked(diagnosis, one.truth.pitfall)) answer.state = Answer::State::not_triggered;
  return answer;
}

Answer ask_program(const Case& one, const std::string& command, std::chrono::seconds deadline) {
  const TemporaryFolder run("lockstep-checker"), traces("lockstep-case");
  copy_blinded(one.folder, traces.path());
  if (fs::is_empty(traces.path())) throw Error(one.folder.string() + ": a truth.json and no trace");
  const auto result =
      launch::launch({.command = {"/bin/sh", "-c", command + " \"$0\"", traces.path()},
                      .folder = run.path(),
                      .deadline = deadline});
  const auto& end = result.ranks.at(0);
  if (end.end == launch::End::deadline)
    return {Answer::State::error, {}, "no answer in " + std::to_string(deadline.count()) + " s"};
  if (end.end != launch::End::completed && end.exit_code != 1)
    return {.state = Answer::State::error,
            .reason = "exit code " + std::to_string(end.exit_code) + " " + end.output_tail,
            .not_started = end.exit_code == kNotFound || end.exit_code == kNotExecutable};
  try {
    return answer_of(json::parse(read_file(run.path() / "rank_0.out")));
  } catch (const json::exception& error) {
    return {Answer::State::error, {}, std::string("what it printed: ") + error.what()};
  }
}

}  // namespace lockstep::matrix
