// The JSON comparison report: a lesson's variants side by side, each with what the oracle measured and
// what the detectors found. Its schema is reports/schema/lesson.schema.json.
#pragma once

#include <lockstep/diagnose/diagnose.h>
#include <lockstep/launch/launch.h>
#include <lockstep/report/pictures.h>
#include <lockstep/report/stall.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::report {

constexpr int kSchemaVersion = 2;

struct Environment {
  std::string git_revision;  // "unknown" outside a checkout
  std::string torch_version;
  std::string compiler;
  std::string backend;
  int world_size = 1;
  std::uint64_t seed = 0;
  std::string cpu;
  int processors = 1;
  std::vector<std::string> gpus;
  std::string data;  // "Fashion-MNIST" or "synthetic"
};
// Fills in what can be read off this machine.
Environment environment_here(const std::filesystem::path& source_folder);

// How a variant's run ended.
enum class Ending { completed, crash, hang, skipped };
std::string to_string(Ending ending);

struct OracleResult {
  std::string pitfall;  // whose oracle this is
  std::string metric;
  double expected = 0;
  double observed = 0;
  double tolerance = 0;
  bool manifested = false;
};

// What a variant was meant to be.
enum class Kind { correct, broken, near_miss };
std::string to_string(Kind kind);

struct Variant {
  std::string name;
  std::string part;
  Kind kind = Kind::correct;
  std::string what;  // one line: what it does, or which naive check it fools
  // Of this run: a fault that needs more ranks than the lesson's default gets them.
  int world_size = 1;
  std::string participants =
      "ranks";  // what world_size counts: "ranks", or one process's "devices"
  Ending ending = Ending::completed;
  Ending meant =
      Ending::completed;       // how a variant of this kind ends where it shows what it is for
  std::string reason;          // of a crash, a hang or a skip
  std::optional<Stall> stall;  // where the ranks stalled, where they did
  std::vector<OracleResult> oracles;
  std::vector<diagnose::Finding> findings;
  std::vector<std::vector<double>> losses;    // [rank][epoch]
  std::vector<double> reference_losses;       // [epoch]: one process on the same global batches
  std::vector<std::vector<double>> accuracy;  // [rank][epoch]
  std::optional<Pictures> pictures;           // where its trace could be read
  double seconds = 0;                         // start to finish, processes included
  // "as-expected", "false-alarm", "not-manifested", "not-named", "misnamed", "not-completed",
  // "ended-otherwise", "manifested", "skipped"
  std::string verdict;
};

// The verdict a variant deserves. Broken: it ends as meant, its own oracle manifests and exactly its
// own pitfall is named. Correct and near miss: it completes, no oracle manifests, and no violation is found.
std::string judge(const Variant& variant);

struct LessonReport {
  std::string lesson;
  std::string title;
  Environment environment;
  std::vector<Variant> variants;

  bool as_expected() const;  // no verdict but "as-expected" and "skipped"
};

std::string to_json(const LessonReport& comparison);

// For people, 80 columns at most: each variant with what was measured and found, and how many of all are as expected.
std::string to_text(const LessonReport& comparison);
std::string to_text(const Variant& variant);

}  // namespace lockstep::report
