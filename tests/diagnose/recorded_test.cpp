// Really recorded runs: variants of lessons, run for these tests, or every run that is kept below the folder that
// LOCKSTEP_TEST_RUNS names (the full tier: all variants). What is found must not hang on a name, a path, a clock
// or the order of the cases; each pitfall must show from the level on that its detector declares, and with the calls
// alone that its page declares.
#include <gtest/gtest.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/file.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/diagnose.h>
#include <lockstep/report/page.h>
#include <lockstep/trace/attempts.h>
#include <lockstep/trace/levels.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <sstream>

#include "../support/program.h"
#include "renamed_run.h"

namespace lockstep::simulated {
namespace {

namespace fs = std::filesystem;

struct Variant {
  const char* lesson;
  const char* name;
};
// Every kind of name that a trace holds, every level, a run of several attempts, right runs among them.
constexpr Variant kVariants[] = {
    {"02_data_parallel", "replica-buffers-lost"},
    {"03_ddp", "no-initial-broadcast"},
    {"03_ddp", "near-miss-parameters-averaged"},
    {"05_set_epoch", "missing-set-epoch"},
    {"06_sync_batch_norm", "unequal-counts-in-sync"},
    {"06_sync_batch_norm", "buffers-not-synced"},
    {"07_checkpoint", "module-prefix"},
    {"07_checkpoint", "concurrent-writers"},
    {"08_lr_scaling", "schedule-unit-mismatch"},
    {"09_hanging_collective", "shape-mismatch"},
    {"09_hanging_collective", "subgroup-created-by-members-only"},
    {"09_hanging_collective", "async-work-not-waited"},
    {"09_hanging_collective", "one-rank-raises"},
    {"10_launch", "duplicate-gpu"},
    {"10_launch", "every-rank-prepares-data"},
    {"10_launch", "silent-single-process"},
    {"14_unused_parameters", "parameter-ready-twice"},
    {"14_unused_parameters", "unused-parameter"},
    {"16_metrics", "rank-zero-metric"},
    {"17_nccl_and_streams", "small-shared-memory"},
    {"18_elastic_restart", "restart-without-resume"},
};

struct Case {
  fs::path folder;
  std::string name, pitfall;  // "" = a right run
};

// Each run at or below a folder, by its truth.json.
std::vector<Case> find_cases(const fs::path& top) {
  std::vector<Case> cases;
  for (const auto& entry : fs::recursive_directory_iterator(top)) {
    if (entry.path().filename() != "truth.json") continue;
    const auto truth = nlohmann::json::parse(read_file(entry.path()));
    cases.push_back({entry.path().parent_path(), truth.at("name"),
                     truth.at("kind") == "fault" ? truth.at("names").at(0) : ""});
  }
  return cases;
}

// All that was said, as lines that can be compared; names in it are put back.
std::vector<std::string> said(const trace::Trace& trace, const Renaming& renaming = {}) {
  std::vector<std::string> lines;
  const auto diagnosis = diagnose::diagnose(trace);
  for (const auto& finding : diagnosis.findings)
    lines.push_back(finding.pitfall + ", " + diagnose::to_string(finding.severity) + ", ranks " +
                    ::testing::PrintToString(finding.ranks) + ", step " +
                    std::to_string(finding.step) + ", sequence " +
                    std::to_string(finding.sequence) + ": " + renaming.undone_in(finding.evidence));
  for (const auto& row : diagnosis.rows)
    lines.push_back(row.slug + " " + diagnose::to_string(row.verdict.state) + " " +
                    renaming.undone_in(row.verdict.reason));
  return lines;
}

// ---- what a program tells by a call of its own ----

// As event_name() calls them. In a lesson `loss` is told by cross_entropy or tell_loss.
const std::map<std::string, std::set<std::string>>& events_of_calls() {
  static const std::map<std::string, std::set<std::string>> kEvents{
      {"loss", {"loss"}},
      {"intent", {"intent"}},
      {"metric", {"metric"}},
      {"decision", {"decision"}},
      {"random_numbers", {"random_numbers"}},
      {"training_state", {"training_state"}},
      {"average", {"average"}},
      {"async_result", {"async_result"}},
      {"probes",
       {"device", "shard", "spawn", "data_file", "stream_use", "shared_memory", "store_call use",
        "attempt that is the last"}},
      {"launcher", {}},
  };
  return kEvents;
}

// By its kind; where the library tells some of a kind and the program others, which of them it is.
std::string event_name(const trace::Event& event) {
  const std::string kind = trace::name_of(event.payload.index());
  if (const auto* call = event.as<trace::StoreCall>()) return kind + " " + call->action;
  const auto* attempt = event.as<trace::Attempt>();
  return attempt != nullptr && attempt->max_restarts == 0 ? kind + " that is the last" : kind;
}

// The recorder's word of a backward whose losses nobody has told.
void leave_its_value(trace::Event& event) {
  if (const auto* loss = event.as<trace::Loss>())
    event.payload = trace::SharedPayload(trace::Backward{loss->backward_value});
}

// The page's line "calls:"; empty for "none".
std::set<std::string> calls_of_page(const std::string& slug) {
  static const auto kPages = report::all_pages(LOCKSTEP_SOURCE_DIR);
  std::set<std::string> calls;
  std::istringstream list(kPages.at(slug).facts.at("calls"));
  for (std::string call; std::getline(list >> std::ws, call, ',');) calls.insert(call);
  calls.erase("none");
  return calls;
}

// Those whose events nothing else records.
std::vector<std::string> calls_that_a_trace_tells() {
  std::vector<std::string> calls;
  for (const auto& [call, events] : events_of_calls()) calls.push_back(call);
  return calls;
}

trace::Trace without_call(trace::Trace trace, const std::string& call) {
  if (call == "launcher") trace.ends.clear();
  const auto& gone = events_of_calls().at(call);
  const auto is_gone = [&](const trace::Event& event) { return gone.count(event_name(event)) > 0; };
  for (auto& rank : trace.ranks) {
    if (call == "loss") std::for_each(rank.events.begin(), rank.events.end(), leave_its_value);
    const auto latest = rank.events.begin() + static_cast<std::ptrdiff_t>(rank.last_attempt);
    rank.last_attempt -=
        static_cast<std::size_t>(std::count_if(rank.events.begin(), latest, is_gone));
    std::erase_if(rank.events, is_gone);
  }
  return trace;
}

// ---- the runs ----

class Recorded : public ::testing::Test {
 protected:
  fs::path record(const Variant& variant) const {
    const auto finished = testing::run({std::string(LOCKSTEP_LESSONS_FOLDER) + "/" + variant.lesson,
                                        "--variant", variant.name, "--world-size", "2", "--trace",
                                        (folder_.path() / "runs").string()});
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    return folder_.path() / "runs" / variant.lesson / variant.name;
  }
  void expect_the_same_under_other_names(const fs::path& run) const {
    const TemporaryFolder copy("lockstep-renamed");
    Renaming renaming;
    copy_renamed(run, copy.path(), renaming);
    EXPECT_EQ(said(trace::read_job(copy.path()), renaming), said(trace::read_job(run))) << run;
  }
  void expect_named_from_its_level_on(const Case& one) const {
    const auto& slug = one.pitfall;
    if (slug.empty()) return;
    const auto whole = trace::read_job(one.folder);
    const auto* detector = diagnose::detector_of(slug);
    for (int level = detector == nullptr ? 0 : detector->lowest_level(); level < trace::kLevels;
         ++level) {
      const auto found = diagnose::diagnose(trace::at_level(whole, level)).findings;
      EXPECT_TRUE(std::any_of(found.begin(), found.end(),
                              [&](const auto& it) { return it.pitfall == slug; }))
          << one.name << ", level " << level;
    }
  }
  // Without what one call tells it is found still, or not any more, as the page says.
  void expect_needs_the_calls_of_its_page(const Case& one) const {
    const auto& slug = one.pitfall;
    if (slug.empty()) return;
    const auto declared = calls_of_page(slug);
    const auto whole = trace::read_job(one.folder);
    for (const auto& call : calls_that_a_trace_tells()) {
      const auto found = diagnose::diagnose(without_call(whole, call)).findings;
      EXPECT_EQ(std::any_of(found.begin(), found.end(),
                            [&](const auto& it) { return it.pitfall == slug; }),
                declared.count(call) == 0)
          << one.name << " without " << call;
    }
  }

 private:
  TemporaryFolder folder_{"lockstep-recorded"};
};

class RecordedVariant : public Recorded, public ::testing::WithParamInterface<Variant> {};
INSTANTIATE_TEST_SUITE_P(Lessons, RecordedVariant, ::testing::ValuesIn(kVariants),
                         [](const auto& info) {
                           auto name = std::string("L") + info.param.lesson + "_" + info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(RecordedVariant, IsFoundUnderOtherNamesFromItsLevelOnAndByItsCalls) {
  const auto run = record(GetParam());
  expect_the_same_under_other_names(run);
  const auto cases = find_cases(run);
  ASSERT_EQ(cases.size(), 1u);
  expect_named_from_its_level_on(cases.front());
  expect_needs_the_calls_of_its_page(cases.front());
}

// What is said of a run does not hang on which runs were looked at before.
void expect_the_same_in_any_order(std::vector<fs::path> runs) {
  std::map<fs::path, std::vector<std::string>> first;
  for (const auto& run : runs) first[run] = said(trace::read_job(run));
  std::mt19937 dice(11);
  std::shuffle(runs.begin(), runs.end(), dice);
  for (const auto& run : runs) EXPECT_EQ(said(trace::read_job(run)), first[run]) << run;
}

TEST_F(Recorded, RunsAreJudgedTheSameInAnyOrder) {
  std::vector<fs::path> runs;
  for (const auto& variant : kVariants)
    if (std::string(variant.lesson) < "07") runs.push_back(record(variant));
  expect_the_same_in_any_order(runs);
}

// Asked for by evaluation/matrix.py, which keeps the runs of all variants.
TEST_F(Recorded,
       DISABLED_RunsThatAreKeptAreAllFoundUnderOtherNamesFromTheirLevelOnAndByTheirCalls) {
  const auto kept = environment("LOCKSTEP_TEST_RUNS");
  ASSERT_TRUE(kept) << "LOCKSTEP_TEST_RUNS must name a folder of kept runs";
  std::vector<fs::path> runs;
  for (const auto& one : find_cases(*kept)) {
    expect_the_same_under_other_names(one.folder);
    expect_named_from_its_level_on(one);
    expect_needs_the_calls_of_its_page(one);
    runs.push_back(one.folder);
  }
  expect_the_same_in_any_order(runs);
}

}  // namespace
}  // namespace lockstep::simulated
