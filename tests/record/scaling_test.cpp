// Probes::clip and Probes::scaled_step: gradients as they are, and steps that are left out.
#include <gtest/gtest.h>

#include <cmath>

#include "recorded_job.h"

namespace lockstep::test {
namespace {

struct Steps {
  RecordJob job{1};
  torch::nn::Linear module{3, 1};
  torch::optim::SGD optimizer{module->parameters(), 0.1};

  void backward() {
    optimizer.zero_grad();
    module->forward(torch::ones({4, 3})).sum().backward();
  }
};

TEST(RecordScaling, AClipSaysWhatWasThereBeforeIt) {
  Steps run;
  {
    record::Probes probes(run.job.writer(0));
    probes.attach(*run.module);
    probes.start();
    run.backward();
    probes.clip(1.5, 9);
    for (auto& parameter : run.module->parameters()) parameter.mutable_grad().zero_();
    probes.gradients_ready();
  }
  const auto trace = run.job.trace_of(0);
  const auto clips = trace.all<trace::Clip>();
  ASSERT_EQ(clips.size(), 1U);
  EXPECT_EQ(clips[0].event->max_norm, 1.5);
  EXPECT_EQ(clips[0].event->norm, 9) << "as the program says";
  ASSERT_EQ(clips[0].event->values.size(), 2U);
  EXPECT_NEAR(clips[0].event->values[0].norm, 4 * std::sqrt(3), 1e-6);
  EXPECT_NEAR(clips[0].event->values[1].norm, 4, 1e-6);
}

// The step that follows one left out has its number, and nothing of its gradients and samples.
TEST(RecordScaling, AStepLeftOutLeavesNothingBehind) {
  Steps run;
  {
    record::Probes probes(run.job.writer(0));
    probes.attach(*run.module);
    probes.start();
    for (const bool updates : {false, true, true}) {
      probes.samples("train", {1, 2, 3, 4});
      run.backward();
      probes.gradients_ready();
      probes.scaled_step(64, !updates, updates);
      if (updates) probes.updated(run.optimizer);
    }
  }
  const auto trace = run.job.trace_of(0);
  const auto steps = trace.all<trace::ScaledStep>();
  const auto local = trace.all<trace::LocalGradients>();
  ASSERT_EQ(steps.size(), 3U);
  ASSERT_EQ(local.size(), 3U);
  const std::int64_t numbers[] = {0, 0, 1};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(steps[i].step, numbers[i]);
    EXPECT_EQ(steps[i].event->scale, 64);
    EXPECT_EQ(steps[i].event->found_nonfinite, i == 0);
    EXPECT_EQ(steps[i].event->updates, i != 0);
    EXPECT_EQ(local[i].event->samples, 4);
    EXPECT_NEAR(local[i].event->values[1].norm, 4, 1e-6);
  }
}

TEST(RecordScaling, GradientsOfAStepLeftOutAreRecordedBetweenProbes) {
  Steps run;
  {
    record::Probes probes(run.job.writer(0), {.first = 1, .every = 0});
    probes.attach(*run.module);
    probes.start();
    for (const bool updates : {true, true, false, true}) {
      run.backward();
      probes.gradients_ready();
      probes.scaled_step(64, !updates, updates);
      if (updates) probes.updated(run.optimizer);
    }
  }
  const auto trace = run.job.trace_of(0);
  const auto local = trace.all<trace::LocalGradients>();
  ASSERT_EQ(local.size(), 2U);
  EXPECT_EQ(local[0].step, 0);
  EXPECT_EQ(local[1].step, 2);
  EXPECT_NEAR(local[1].event->values[1].norm, 4, 1e-6);
  EXPECT_EQ(trace.all<trace::ReducedGradients>().size(), 2U);
}

}  // namespace
}  // namespace lockstep::test
