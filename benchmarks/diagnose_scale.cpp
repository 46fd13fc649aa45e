// What a diagnosis costs as ranks are added: time and memory to read a folder of traces and to ask every
// detector, of simulated jobs of 100 steps, healthy and with one fault in them.
//
//   diagnose_scale [FILE] [--ranks 125,250,...] [--steps N] [--repeats N] [--detectors]
//
// FILE (default: the checkout's reports/out/diagnose_scale.json) gets the figures, stderr a table. Each job
// is written, then diagnosed, by processes of their own: the peak memory is the diagnosis's alone. The files
// have just been written, so they come from memory and no disk is measured. The jobs of 10,000 ranks take 10
// GiB of the temporary folder while they are written, and as many open files.
//
// Exits with 1 where a diagnosis is wrong, or where a figure misses what is promised: 10,000 ranks x 100
// steps in 15 s and 1.5 GiB, and time and memory that grow with the ranks and no faster. Time is the processor's:
// one thread that waits for nothing takes that long on a machine with nothing else to do.
#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/diagnose.h>
#include <lockstep/launch/guarded.h>
#include <lockstep/trace/attempts.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <iomanip>
#include <iostream>
#include <numeric>
#include <thread>

#include "../tests/diagnose/scale_job.h"
#include "interval.h"

namespace {

using namespace lockstep;
using namespace lockstep::benchmark;
using namespace lockstep::simulated;
using nlohmann::json;

constexpr int kPromisedRanks = 10000;
constexpr double kPromisedSeconds = 15, kPromisedGib = 1.5;
// Of a figure that grows as ranks^e. Sorting makes a true n log n of some; 2 would be quadratic.
constexpr double kMostGrowth = 1.2;
constexpr int kGrowthFrom = 500;  // ranks; in fewer, what is fixed counts

struct Case {
  const char* name;
  Fault fault;
  std::string pitfall;  // that must be named; "" = none
  bool on_all;          // ranks, or else on the odd one
};
const std::vector<Case> kCases = {
    {"healthy", Fault::none, "", false},
    {"learning_rate", Fault::learning_rate, "update-differs", false},
    {"death", Fault::death, "peer-dies", false},
    {"no_reduction", Fault::no_reduction, "forward-bypasses-wrapper", true}};

double seconds_since(std::int64_t begin) {
  return static_cast<double>(monotonic_ns() - begin) / 1e9;
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

// In a process of its own, whose peak memory and processor time come back beside what it returns.
json apart(const std::filesystem::path& folder, const std::function<json()>& work) {
  const auto file = folder / "result.json";
  const pid_t child = fork();
  if (child < 0) throw Error("cannot start a process");
  if (child == 0) {
    json result;
    try {
      result = work();
    } catch (const std::exception& error) {
      result = {{"error", error.what()}};
    }
    write_file(file, result.dump());
    _exit(0);
  }
  int status = 0;
  rusage used{};
  if (wait4(child, &status, 0, &used) != child || status != 0)
    throw Error("a measuring process ended with status " + std::to_string(status));
  auto result = json::parse(read_file(file));
  if (result.contains("error")) throw Error(result["error"].get<std::string>());
  result["cpu_seconds"] = seconds(used.ru_utime) + seconds(used.ru_stime);
  result["gib"] = static_cast<double>(used.ru_maxrss) / (1 << 20);
  return result;
}

json measure(const std::filesystem::path& traces) {
  const auto begin = monotonic_ns();
  const auto trace = trace::read_job(traces);
  const auto read = seconds_since(begin);
  const auto diagnosis = diagnose::diagnose(trace);
  json result = {{"seconds", seconds_since(begin)}, {"read_seconds", read}};
  for (const auto& finding : diagnosis.findings)
    result["findings"].push_back({{"pitfall", finding.pitfall}, {"ranks", finding.ranks}});
  return result;
}

// Each detector's seconds of a processor, asked one after another.
json measure_detectors(const std::filesystem::path& traces) {
  const auto trace = trace::read_job(traces);
  json result;
  for (const auto& detector : diagnose::detectors()) {
    const auto begin = std::clock();
    detector.verdict(diagnose::Run(trace));
    result["detectors"][detector.slug] = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  }
  return result;
}

std::string expected(const Case& of, const ScaleJob& job) {
  if (of.pitfall.empty()) return json(nullptr).dump();
  std::vector<int> ranks{kOddRank};
  if (of.on_all) {
    ranks.resize(static_cast<std::size_t>(job.ranks));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  return json::array({{{"pitfall", of.pitfall}, {"ranks", ranks}}}).dump();
}

double mib_in(const std::filesystem::path& folder) {
  double bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    bytes += static_cast<double>(entry.file_size());
  return bytes / (1 << 20);
}

struct Options {
  std::string file = LOCKSTEP_SOURCE_DIR "/reports/out/diagnose_scale.json";
  std::vector<int> ranks{125, 250, 500, 1000, 2000, 4000, 10000};
  int steps = 100;
  int repeats = 3;
  bool detectors = false;
};

json run_case(const Case& of, const ScaleJob& job, const Options& options) {
  const TemporaryFolder traces("lockstep-scale"), results("lockstep-scale-result");
  apart(results.path(), [&] {
    write_traces(traces.path(), job.run());
    return json::object();
  });
  json row = {{"ranks", job.ranks}, {"case", of.name}, {"mib", mib_in(traces.path())}};
  if (options.detectors)
    row.update(apart(results.path(), [&] { return measure_detectors(traces.path()); }));
  std::vector<json> runs;
  for (int i = 0; i < options.repeats; ++i)
    runs.push_back(apart(results.path(), [&] { return measure(traces.path()); }));
  for (const char* figure : {"seconds", "read_seconds", "cpu_seconds", "gib"}) {
    std::vector<double> all;
    for (const auto& run : runs) all.push_back(run[figure]);
    row[figure] = median_with_interval(all)["median"];
    row["all_" + std::string(figure)] = all;
  }
  row["right"] = runs[0].value("findings", json()).dump() == expected(of, job);
  if (!row["right"]) row["findings"] = runs[0].value("findings", json());
  return row;
}

// The exponent e of the figure's growth as ranks^e: the slope of the logarithms' regression line. Nothing
// where there are no three sizes.
json growth(const std::vector<json>& rows, const std::string& name, const char* figure) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& row : rows) {
    if (row["case"] != name || row["ranks"] < kGrowthFrom) continue;
    const double at = std::log(row["ranks"].get<double>()),
                 of = std::log(row[figure].get<double>());
    n += 1, x += at, y += of, xx += at * at, xy += at * of;
  }
  return n < 3 ? json() : json((n * xy - x * y) / (n * xx - x * x));
}

void print(const json& row) {
  std::cerr << std::fixed << std::setprecision(2) << std::setw(6) << row["ranks"].get<int>() << "  "
            << std::left << std::setw(14) << row["case"].get<std::string>() << std::right
            << std::setw(9) << row["mib"].get<double>() << " MiB" << std::setw(8)
            << row["seconds"].get<double>() << " s (reading" << std::setw(7)
            << row["read_seconds"].get<double>() << " s)" << std::setw(8)
            << row["cpu_seconds"].get<double>() << " s of processors" << std::setw(7)
            << row["gib"].get<double>() << " GiB  " << (row["right"] ? "right" : "WRONG") << "\n";
  if (!row.contains("detectors")) return;
  std::vector<std::pair<double, std::string>> slowest;
  for (const auto& [slug, time] : row["detectors"].items()) slowest.emplace_back(time, slug);
  std::sort(slowest.rbegin(), slowest.rend());
  for (const auto& [time, slug] : slowest)
    std::cerr << std::setw(12) << time << " s  " << slug << "\n";
}

int run(const Options& options) {
  const double before = load_average();
  std::vector<json> rows;
  bool kept = true;
  for (const int ranks : options.ranks)
    for (const auto& of : kCases) {
      rows.push_back(
          run_case(of, {.ranks = ranks, .steps = options.steps, .fault = of.fault}, options));
      const auto& row = rows.back();
      print(row);
      const bool promised = ranks <= kPromisedRanks && options.steps <= 100;
      kept = kept && row["right"] &&
             (!promised || (row["cpu_seconds"] <= kPromisedSeconds && row["gib"] <= kPromisedGib));
    }
  json grows;
  for (const auto& of : kCases)
    for (const char* figure : {"cpu_seconds", "gib"}) {
      const auto exponent = growth(rows, of.name, figure);
      grows[of.name][figure] = exponent;
      if (exponent.is_null()) continue;
      kept = kept && exponent <= kMostGrowth;
      std::cerr << of.name << ": " << figure << " grow as ranks^" << exponent.get<double>() << "\n";
    }
  const json result = {{"benchmark", "diagnose_scale"},
                       {"target",
                        {{"ranks", kPromisedRanks},
                         {"steps", 100},
                         {"seconds", kPromisedSeconds},
                         {"gib", kPromisedGib},
                         {"growth_exponent", kMostGrowth}}},
                       {"kept", kept},
                       {"settings",
                        {{"steps", options.steps},
                         {"repeats", options.repeats},
                         {"cpus", std::thread::hardware_concurrency()}}},
                       {"load_average", {{"before", before}, {"after", load_average()}}},
                       {"growth_exponent", {{"from_ranks", kGrowthFrom}, {"of", grows}}},
                       {"rows", rows}};
  write_file(options.file, result.dump(1) + "\n");
  return kept ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("What a diagnosis costs as ranks are added");
  app.add_option("file", options.file, "where to write the figures (JSON)");
  app.add_option("--ranks", options.ranks, "numbers of ranks")
      ->delimiter(',')
      ->check(CLI::Range(8, 20000));
  app.add_option("--steps", options.steps, "steps of each job")->check(CLI::Range(10, 10000));
  app.add_option("--repeats", options.repeats, "diagnoses of each job")->check(CLI::Range(1, 100));
  app.add_flag("--detectors", options.detectors, "also time each detector by itself");
  CLI11_PARSE(app, argc, argv);
  return launch::guarded([&] { return run(options); });
}
