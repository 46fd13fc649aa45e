// A right run, judged by every detector.
#include <gtest/gtest.h>

#include <set>

#include "expect.h"
#include "job.h"

namespace lockstep::contract {
namespace {

using diagnose::State;

class WholeRun : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, WholeRun, testing::Values(2, 3, 4, 8),
                         testing::PrintToStringParamName());

TEST_P(WholeRun, IsCleanAndWasLookedAt) {
  auto trace = Job(GetParam()).run();
  for (auto& rank : trace.ranks)
    record(rank, 3, trace::Collective{9, 0, 1, "world", "allreduce", "sum", -1, "float", {9}});
  expect_nothing(trace);
  const std::set<std::string> of_devices{"replica-buffers-lost", "odd-batch-split",
                                         "unequal-chunk-mean", "device-zero-bottleneck"};
  // They need what a right run of this size cannot show.
  const std::set<std::string> impossible{"padding-overruns",
                                         "no-gradient-sync",
                                         "linear-rule-with-adam",
                                         "mean-of-local-means",
                                         "last-accumulation-window-lost",
                                         "communicator-order"};
  // They need what this job does not do; engine_job.h's does.
  const std::set<std::string> of_engines{"sync-every-microbatch",    "no-sync-around-backward-only",
                                         "accumulation-not-divided", "mean-of-microbatch-means",
                                         "unused-parameter",         "parameter-ready-twice",
                                         "zero-grad-on-bucket-view"};
  // So do these; batch_norm_job.h's does.
  const std::set<std::string> of_batch_norm{"local-batch-norm", "unequal-counts-in-sync",
                                            "buffer-sync-inside-backward", "buffers-not-synced",
                                            "train-mode-differs-across-ranks"};
  // And these: random numbers, and losses that differ by rank, are of randomness_test.cpp and
  // loss_graph_test.cpp.
  const std::set<std::string> of_values{"same-augmentation-everywhere", "worker-streams-copied",
                                        "loss-all-reduced-in-place"};
  // Checkpoints are of checkpoint_test.cpp, clips and scaled losses of clipping_test.cpp.
  const std::set<std::string> of_checkpoints{
      "load-without-map-location", "optimizer-state-on-wrong-device", "module-prefix",
      "optimizer-state-missing",   "scheduler-or-rng-state-missing",  "ema-on-one-rank",
      "resume-repeats-epoch",      "resume-mid-epoch-replays",        "read-before-written",
      "concurrent-writers",        "local-rank-zero-writes",          "torn-checkpoint"};
  const std::set<std::string> of_clips{"norm-reduced-twice", "clip-before-reduction",
                                       "clip-before-unscale", "local-overflow-skip"};
  // Jobs that stop are of hanging_test.cpp.
  const std::set<std::string> of_hangs{"rank-skips-init",        "subgroup-created-by-members-only",
                                       "local-early-stop",       "peer-dies",
                                       "one-rank-raises",        "async-work-not-waited",
                                       "restart-without-resume", "restart-expected-by-default"};
  // How a job is launched is of placing_test.cpp and starting_test.cpp; streams and memory of streams_test.cpp.
  const std::set<std::string> of_launches{"rank-as-device-index",
                                          "visible-devices-remapped",
                                          "duplicate-gpu",
                                          "device-not-set",
                                          "fixed-port",
                                          "wrong-network-interface",
                                          "world-size-from-device-count",
                                          "thread-oversubscription",
                                          "spawn-under-launcher",
                                          "every-rank-prepares-data",
                                          "group-never-destroyed",
                                          "wrong-stream",
                                          "small-shared-memory"};
  for (const auto& row : diagnose::diagnose(trace).rows) {
    const auto expected = of_launches.count(row.slug) || of_hangs.count(row.slug) ||
                                  of_checkpoints.count(row.slug) || of_clips.count(row.slug) ||
                                  of_values.count(row.slug) || of_devices.count(row.slug) ||
                                  of_engines.count(row.slug) || of_batch_norm.count(row.slug)
                              ? State::not_triggered
                          : impossible.count(row.slug) ? State::not_applicable
                                                       : State::clean;
    EXPECT_EQ(row.verdict.state, expected) << row.slug << ": " << row.verdict.reason;
  }
}

TEST(WholeRunRows, AreOneForEachDetectorAndSayWhyTheyDidNotLook) {
  const auto rows = diagnose::diagnose(empty_trace(2)).rows;
  ASSERT_EQ(rows.size(), diagnose::detectors().size());
  std::set<std::string> slugs;
  for (const auto& row : rows) {
    slugs.insert(row.slug);
    EXPECT_TRUE(row.verdict.state == State::not_triggered ||
                row.verdict.state == State::not_applicable)
        << row.slug;
    EXPECT_FALSE(row.verdict.reason.empty()) << row.slug;
  }
  EXPECT_EQ(slugs.size(), diagnose::detectors().size());
}

TEST(WholeRunRows, OfAnAbsentRankOrNoRankAtAllFindNothing) {
  auto trace = Job(4).run();
  trace.ranks.erase(trace.ranks.begin());
  EXPECT_TRUE(diagnose::diagnose(trace).findings.empty());
  EXPECT_TRUE(diagnose::diagnose(trace::Trace{}).findings.empty());
}

// A run killed after any event: never a finding that the whole run does not have.
TEST_P(WholeRun, CutAnywhereStaysClean) {
  const auto whole = Job(GetParam()).run();
  for (std::size_t length = 0; length < whole.ranks[0].events.size(); length += 7) {
    auto cut = whole;
    for (std::size_t r = 0; r < cut.ranks.size(); ++r) {
      cut.ranks[r].events.resize(std::min(cut.ranks[r].events.size(), length + r));
      cut.ranks[r].closed = false;
    }
    ASSERT_TRUE(diagnose::diagnose(cut).findings.empty())
        << length << ": " << diagnose::diagnose(cut).findings[0].pitfall;
  }
}

TEST_P(WholeRun, NonFiniteGradientsAreNoFindingOfTheirReduction) {
  auto trace = Job(GetParam()).run();
  for (auto& rank : trace.ranks)
    for (auto& event : rank.events)
      if (auto* local = std::get_if<trace::LocalGradients>(&event.payload); local && event.step > 1)
        local->values[0].sketch[0] = std::numeric_limits<double>::quiet_NaN();
  expect_nothing(trace);
}

}  // namespace
}  // namespace lockstep::contract
