#include <gtest/gtest.h>
#include <lockstep/diagnose/text.h>

#include <sstream>

#include "expect.h"
#include "job.h"

namespace lockstep::simulated {
namespace {

TEST(Text, TellsSlugRanksStepAndFiguresInEightyColumns) {
  Job job(8);
  job.reduced_times = 8;
  const auto text = diagnose::to_text(diagnose::diagnose(job.run()));
  EXPECT_EQ(text.rfind("violation: sum-not-mean\n    ranks 0, 1, 2, 3, 4, 5, 6 and 7, step 0\n", 0),
            0u)
      << text;
  EXPECT_NE(text.find("the reduced gradient is 8 times the mean"), std::string::npos) << text;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(Text, SaysWhatElseWasFoundAndFollows) {
  Job job(3);
  job.reduce = false;
  job.has_engine = false;
  const auto text = diagnose::to_text(diagnose::diagnose(job.run()));
  EXPECT_NE(text.find("also found, and follows from this: replicas-diverged\n"), std::string::npos)
      << text;
}

TEST(Text, SaysWhatAGenericFindingMayBeAndWhatWasLookedFor) {
  Job job(2);
  job.lr = [](int rank) { return rank == 0 ? 0.1 : 0.2; };
  const auto diagnosis = diagnose::diagnose(job.run());
  const auto& finding = diagnosis.findings.front();
  ASSERT_EQ(finding.pitfall, "update-differs");
  ASSERT_EQ(finding.nearest.size(), 3U);
  for (const auto& one : finding.nearest)
    for (const auto& row : diagnosis.rows)
      if (row.slug == one.pitfall) {
        EXPECT_EQ(one.state, row.verdict.state) << one.pitfall;
        EXPECT_EQ(one.reason, row.verdict.reason) << one.pitfall;
      }
  const auto text = diagnose::to_text(diagnosis);
  EXPECT_NE(
      text.find("    or optimizer-state-missing, if after a resume the optimizer's state is gone\n"
                "    on one rank (not looked for: no `training_state` was recorded)\n"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("    no sign of: optimizer-built-on-other-parameters\n"), std::string::npos)
      << text;
}

TEST(Text, SaysOfEachNearPitfallWhatItsDetectorSaid) {
  diagnose::Diagnosis diagnosis;
  diagnosis.findings = {{.pitfall = "update-differs",
                         .ranks = {1},
                         .evidence = "evidence",
                         .nearest = {{"a", "it shows", diagnose::State::found},
                                     {"b", "it shows", diagnose::State::clean},
                                     {"c", "it shows", diagnose::State::not_triggered, "no `loss`"},
                                     {"d", "it shows", diagnose::State::not_applicable, "a reason"},
                                     {"e", "it shows", diagnose::State::clean}}}};
  EXPECT_EQ(diagnose::to_text(diagnosis).find("violation: update-differs\n"
                                              "    rank 1\n"
                                              "    evidence\n"
                                              "    or c, if it shows (not looked for: no `loss`)\n"
                                              "    also found: a\n"
                                              "    no sign of: b and e\n"
                                              "    cannot be: d\n"),
            0U)
      << diagnose::to_text(diagnosis);
  diagnosis.findings[0].severity = diagnose::Severity::advice;
  EXPECT_EQ(diagnose::to_text(diagnosis).find("advice: update-differs\n"
                                              "    rank 1\n"
                                              "    evidence\n"
                                              "    or c, if it shows (not looked for: no `loss`)\n"
                                              "Of "),
            0U)
      << diagnose::to_text(diagnosis);
}

TEST(Text, SaysWhatWasNotRecordedWhereNothingWasFound) {
  const auto whole = Job(2).run();
  EXPECT_EQ(diagnose::to_text(diagnose::diagnose(whole)).find("Updates"), std::string::npos);
  const auto text = diagnose::to_text(diagnose::diagnose(without<trace::Update>(whole)));
  EXPECT_NE(text.find("Updates, and the parameters after them, were not recorded, which "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("lockstep::SGD"), std::string::npos) << text;
}

TEST(Text, SaysWhenNothingWasFoundAndHowMuchWasLookedAt) {
  diagnose::Diagnosis diagnosis;
  diagnosis.recorded = {"collective", "update", "samples", "loss"};
  const auto add = [&](int times, diagnose::State state) {
    for (int i = 0; i < times; ++i) diagnosis.rows.push_back({"a-slug", {state, {}, {}}});
  };
  add(21, diagnose::State::clean);
  add(5, diagnose::State::not_triggered);
  add(2, diagnose::State::not_applicable);
  EXPECT_EQ(diagnose::to_text(diagnosis),
            "Nothing found.\n"
            "Of 28 detectors: 0 found, 21 clean, 5 without the events they need, 2 that do\n"
            "not apply to this run.\n");
}

TEST(Text, OfStates) {
  EXPECT_EQ(diagnose::to_string(diagnose::State::found), "found");
  EXPECT_EQ(diagnose::to_string(diagnose::State::clean), "clean");
  EXPECT_EQ(diagnose::to_string(diagnose::State::not_triggered), "not-triggered");
  EXPECT_EQ(diagnose::to_string(diagnose::State::not_applicable), "not-applicable");
  EXPECT_EQ(diagnose::to_string(diagnose::Severity::violation), "violation");
  EXPECT_EQ(diagnose::to_string(diagnose::Severity::advice), "advice");
}

}  // namespace
}  // namespace lockstep::simulated
