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
  EXPECT_NE(text.find("\nviolation: sum-not-mean\n    ranks 0, 1, 2, 3, 4, 5, 6 and 7, step 0\n"),
            std::string::npos)
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
  EXPECT_EQ(
      diagnose::to_text(diagnosis).find("advice: update-differs\n"
                                        "    rank 1\n"
                                        "    evidence\n"
                                        "    or c, if it shows (not looked for: no `loss`)\n"),
      0U)
      << diagnose::to_text(diagnosis);
}

TEST(Text, SaysOfEachEquationWhetherItHeld) {
  diagnose::Diagnosis diagnosis;
  diagnosis.ledger = {
      {.equation = diagnose::Equation::equal_start,
       .standing = diagnose::Standing::held,
       .looked_at = "1 model"},
      {.equation = diagnose::Equation::mean_gradient,
       .standing = diagnose::Standing::broken,
       .looked_at = "5 of 40 updates",
       .ranks = {0, 1},
       .step = 8,
       .after = 4,
       .broken_by = {"no-gradient-sync", "gradient-not-the-mean"}},
      {.equation = diagnose::Equation::own_samples, .reason = "no batch was seen"},
      {.equation = diagnose::Equation::clipped_once,
       .standing = diagnose::Standing::idle,
       .reason = "no gradient was clipped"},
  };
  EXPECT_EQ(diagnose::to_text(diagnosis),
            "What must hold, and whether it did:\n"
            "  held    replicas start from equal parameters (1 model)\n"
            "  BROKEN  the gradient is the mean of the ranks' own, of this step\n"
            "            since step 8 (it held at step 4), ranks 0 and 1: no-gradient-sync\n"
            "            and gradient-not-the-mean\n"
            "  ?       ranks draw different samples, and together each one once\n"
            "            no batch was seen\n"
            "  -       clipping sees the mean gradient, once and unscaled (no gradient was\n"
            "          clipped)\n");
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
