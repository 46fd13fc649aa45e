// Jobs that clip, and jobs that scale their losses, event by event.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "expect.h"
#include "job.h"
#include "sizes.h"
#include "tensors.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

class Clipping : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Clipping, kTwoAndThree, testing::PrintToStringParamName());

Tensors times(Tensors tensors, double factor) {
  for (auto& tensor : tensors)
    for (auto& value : tensor) value *= factor;
  return tensors;
}

double norm(const Tensors& tensors) {
  double square = 0;
  for (const auto& tensor : tensors)
    for (const auto value : tensor) square += value * value;
  return std::sqrt(square);
}

// Three steps of a job whose ranks' own gradients differ, and whose loss may be scaled.
struct ClippingJob {
  int world_size;
  double allowed = 0.5;
  double scale = 1;
  bool clip_own = false;     // before the reduction
  bool clip_scaled = false;  // before it is divided by the scale
  bool reduce = true;
  bool clip_early = false;    // before the backward
  bool clears_first = false;  // and after the gradients were cleared
  double norm_times = 1;      // what the norm gone by is of the gradients'

  trace::Trace run() const {
    auto trace = empty_trace(world_size);
    std::vector<Tensors> held(static_cast<std::size_t>(world_size), times(draw_values(0, 0, 0), 0));
    for (int step = 0; step < 3; ++step) {
      if (clears_first)
        for (auto& gradient : held) gradient = times(gradient, 0);
      if (clip_early) clip(trace, step, held);
      std::vector<Tensors> own;
      for (int rank = 0; rank < world_size; ++rank)
        own.push_back(times(draw_values(3, rank, step), scale * (1 + rank)));
      held = own;
      if (clip_own) clip(trace, step, held);
      if (reduce) held.assign(held.size(), mean(held));
      if (!clip_own && clip_scaled) clip(trace, step, held);
      for (auto& gradient : held) gradient = times(gradient, 1 / scale);
      if (!clip_own && !clip_scaled && !clip_early) clip(trace, step, held);
      for (int rank = 0; rank < world_size; ++rank) {
        auto& events = trace.ranks[rank];
        record(events, step, trace::LocalGradients{4, summarize(own[rank])});
        record(events, step, trace::ReducedGradients{summarize(held[rank])});
        if (scale != 1) record(events, step, trace::ScaledStep{scale, false, true});
        record(events, step, trace::Update{{0.1}});
      }
    }
    return trace;
  }

  void clip(trace::Trace& trace, int step, std::vector<Tensors>& held) const {
    for (int rank = 0; rank < world_size; ++rank) {
      const double used = norm_times * norm(held[rank]);
      record(trace.ranks[rank], step, trace::Clip{allowed, used, summarize(held[rank])});
      held[rank] = times(held[rank], std::min(1.0, allowed / (used + 1e-6)));
    }
  }
};

TEST_P(Clipping, BeforeTheBackwardIsNamed) {
  for (const bool clears_first : {true, false}) {
    const auto trace =
        ClippingJob{.world_size = GetParam(), .clip_early = true, .clears_first = clears_first}
            .run();
    expect_only(trace, "clipped-before-backward", all_ranks(GetParam()), 0);
  }
}

// Parts of a batch, each with a backward, and a clip behind each.
TEST_P(Clipping, OfEachPartIsAdvice) {
  const auto in_parts = [](trace::Trace trace) {
    for (auto& rank : trace.ranks)
      for (auto event = rank.events.begin(); event != rank.events.end(); ++event)
        if (event->is<trace::Clip>())
          event = rank.events.insert(event + 1,
                                     trace::Event{0, event->step, trace::GradientArrived{0}});
    return trace;
  };
  expect_only(in_parts(ClippingJob{.world_size = GetParam(), .allowed = 0.01}.run()),
              "clipped-before-backward", all_ranks(GetParam()), 0, diagnose::Severity::advice);
  expect_nothing(in_parts(ClippingJob{.world_size = GetParam(), .allowed = 1e3}.run()));
}

// As a GAN's, whose judge is clipped while its painter, which is recorded, has no gradients.
TEST_P(Clipping, OfAnotherModelIsRight) {
  auto trace =
      ClippingJob{.world_size = GetParam(), .clip_early = true, .clears_first = true}.run();
  for (auto [step, clip] : each<trace::Clip>(trace)) clip.norm = 2;
  EXPECT_EQ(state(trace, "clipped-before-backward"), State::clean);
}

TEST_P(Clipping, OfOneBatchAgainAndAgainIsRight) {
  auto trace = ClippingJob{.world_size = GetParam(), .allowed = 1e3}.run();
  const auto first = *trace.ranks[0].all<trace::ReducedGradients>().front().event;
  for (auto [step, reduced] : each<trace::ReducedGradients>(trace)) reduced = first;
  for (auto [step, clip] : each<trace::Clip>(trace)) clip.values = first.values;
  EXPECT_EQ(state(trace, "clipped-before-backward"), State::clean);
}

TEST_P(Clipping, OfTheMeanGradientIsRight) {
  for (const double allowed : {0.01, 0.5, 1e3}) {
    const auto trace = ClippingJob{.world_size = GetParam(), .allowed = allowed}.run();
    expect_nothing(trace);
    for (const auto* slug : {"norm-reduced-twice", "clip-before-reduction"})
      EXPECT_EQ(state(trace, slug), State::clean) << slug;
    EXPECT_EQ(state(trace, "clip-before-unscale"), State::not_triggered) << "nothing is scaled";
  }
}

TEST_P(Clipping, ByANormSummedOverTheRanksAgainIsNamed) {
  const double root = std::sqrt(GetParam());
  const ClippingJob job{.world_size = GetParam(), .norm_times = root};
  expect_only(job.run(), "norm-reduced-twice", all_ranks(GetParam()), 0);
  // Too generous to shorten anything: the norm is wrong all the same.
  const ClippingJob idle{.world_size = GetParam(), .allowed = 1e3, .norm_times = root};
  expect_only(idle.run(), "norm-reduced-twice", all_ranks(GetParam()), 0);
}

TEST_P(Clipping, ByAnotherWrongNormIsNotThatOne) {
  for (const double factor : {0.5, std::sqrt(GetParam()) * 1.01, 1.0 * GetParam()})
    EXPECT_EQ(state(ClippingJob{.world_size = GetParam(), .norm_times = factor}.run(),
                    "norm-reduced-twice"),
              State::clean)
        << factor;
}

// As ranks that train for themselves have them.
TEST_P(Clipping, OfOwnGradientsThatNobodyReducesIsNeither) {
  const ClippingJob wrong_norm{
      .world_size = GetParam(), .reduce = false, .norm_times = std::sqrt(GetParam())};
  EXPECT_EQ(state(wrong_norm.run(), "norm-reduced-twice"), State::clean);
  const ClippingJob own{.world_size = GetParam(), .clip_own = true, .reduce = false};
  EXPECT_EQ(state(own.run(), "clip-before-reduction"), State::clean);
}

TEST_P(Clipping, OfOwnGradientsBeforeTheReductionIsNamed) {
  const ClippingJob job{.world_size = GetParam(), .clip_own = true};
  expect_only(job.run(), "clip-before-reduction", all_ranks(GetParam()), 0);
}

TEST_P(Clipping, OfOwnGradientsBeforeASumIsNamed) {
  auto trace = ClippingJob{.world_size = GetParam(), .clip_own = true}.run();
  for (auto [step, reduced] : each<trace::ReducedGradients>(trace))
    for (auto& value : reduced.values) {
      value.norm *= GetParam();
      for (auto& projection : value.sketch) projection *= GetParam();
    }
  EXPECT_EQ(state(trace, "clip-before-reduction"), State::found);
}

TEST_P(Clipping, OfOwnGradientsThatAreShortEnoughIsRight) {
  const ClippingJob job{.world_size = GetParam(), .allowed = 1e3, .clip_own = true};
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "clip-before-reduction"), State::clean);
}

// One long gradient among short ones is the usual case: only its rank clips.
TEST_P(Clipping, OfOneRanksOwnGradientIsNamed) {
  auto job = ClippingJob{.world_size = GetParam(), .clip_own = true};
  job.allowed = norm(draw_values(3, GetParam() - 1, 0)) * (GetParam() - 0.5);
  EXPECT_EQ(state(job.run(), "clip-before-reduction"), State::found);
}

TEST_P(Clipping, BeforeUnscalingIsNamed) {
  for (const double scale : {256.0, 1024.0, 65536.0}) {
    const ClippingJob job{.world_size = GetParam(), .scale = scale, .clip_scaled = true};
    expect_only(job.run(), "clip-before-unscale", all_ranks(GetParam()), 0);
  }
}

// Nearer to the unscaled norm than to the scaled one, and above it: it was meant to let them pass.
TEST_P(Clipping, BeforeUnscalingIsNamedWhereUnscaledTheyAreShortEnough) {
  const ClippingJob job{
      .world_size = GetParam(), .allowed = 10, .scale = 1024, .clip_scaled = true};
  expect_only(job.run(), "clip-before-unscale", all_ranks(GetParam()), 0);
}

TEST_P(Clipping, ToAScaledNormIsRight) {
  for (const double scale : {256.0, 1024.0, 65536.0}) {
    const ClippingJob job{
        .world_size = GetParam(), .allowed = 0.5 * scale, .scale = scale, .clip_scaled = true};
    expect_nothing(job.run());
    EXPECT_EQ(state(job.run(), "clip-before-unscale"), State::clean);
  }
}

TEST_P(Clipping, AfterUnscalingIsRight) {
  for (const double allowed : {0.5, 1e-3}) {  // the latter cuts to a thousandth
    const ClippingJob job{.world_size = GetParam(), .allowed = allowed, .scale = 1024};
    expect_nothing(job.run());
    EXPECT_EQ(state(job.run(), "clip-before-unscale"), State::clean);
  }
}

// 0.5 of an unscaled 4, or 32 of a scaled 256: both are a factor of 8.
TEST_P(Clipping, ASmallScaleDoesNotTell) {
  const ClippingJob job{.world_size = GetParam(), .scale = 64, .clip_scaled = true};
  EXPECT_EQ(state(job.run(), "clip-before-unscale"), State::not_triggered);
}

TEST(ClippingOfOneRank, BeforeUnscalingIsNamed) {
  const ClippingJob job{.world_size = 1, .scale = 1024, .clip_scaled = true};
  expect_only(job.run(), "clip-before-unscale", {0}, 0);
  EXPECT_EQ(state(job.run(), "norm-reduced-twice"), State::not_applicable);
  EXPECT_EQ(state(job.run(), "clip-before-reduction"), State::not_applicable);
}

TEST_P(Clipping, NeedsItsEvents) {
  const ClippingJob own{.world_size = GetParam(), .clip_own = true};
  const ClippingJob scaled{.world_size = GetParam(), .scale = 1024, .clip_scaled = true};
  for (const auto* slug : {"norm-reduced-twice", "clip-before-reduction", "clip-before-unscale"})
    EXPECT_EQ(state(without<trace::Clip>(scaled.run()), slug), State::not_triggered) << slug;
  EXPECT_EQ(state(without<trace::ReducedGradients>(own.run()), "clip-before-reduction"),
            State::not_triggered);
  EXPECT_EQ(state(without<trace::ScaledStep>(scaled.run()), "clip-before-unscale"),
            State::not_triggered);
  auto cut = own.run();
  cut.ranks.pop_back();
  EXPECT_EQ(state(cut, "clip-before-reduction"), State::not_triggered);
}

// ---- steps left out ----

// The ranks' steps: who found something, and who updates.
struct Decision {
  std::vector<int> found = {}, skip = {};
};
trace::Trace scaled_steps(int world_size, const std::vector<Decision>& decisions) {
  auto trace = empty_trace(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    std::int64_t step = 0;
    for (const auto& decision : decisions) {
      const auto is_in = [&](const std::vector<int>& ranks) {
        return std::count(ranks.begin(), ranks.end(), rank) > 0;
      };
      const bool updates = !is_in(decision.skip);
      record(trace.ranks[rank], step, trace::ScaledStep{1024, is_in(decision.found), updates});
      if (!updates) continue;
      record(trace.ranks[rank], step, trace::Update{{0.1}});
      ++step;
    }
  }
  return trace;
}

TEST_P(Clipping, AStepThatSomeRanksLeaveOutIsNamed) {
  auto others = all_ranks(GetParam());
  others.erase(others.begin());
  for (const auto& some : {std::vector<int>{GetParam() - 1}, others})
    expect_only(scaled_steps(GetParam(), {{}, {}, {some, some}, {}}), "local-overflow-skip", some,
                2);
}

TEST_P(Clipping, AStepThatAllLeaveOutIsRight) {
  const int last = GetParam() - 1;
  const auto all = all_ranks(GetParam());
  for (const auto& found : {std::vector<int>{last}, all, std::vector<int>{}}) {
    const auto trace = scaled_steps(GetParam(), {{}, {found, all}, {}});
    expect_nothing(trace);
    EXPECT_EQ(state(trace, "local-overflow-skip"), State::clean);
  }
}

// They are behind each other for good, though later steps are left out by all.
TEST_P(Clipping, TheFirstDisagreementIsTold) {
  const auto all = all_ranks(GetParam());
  expect_only(scaled_steps(GetParam(), {{all, all}, {}, {{0}, {0}}, {all, all}}),
              "local-overflow-skip", {0}, 1);
}

TEST_P(Clipping, ARankThatWasKilledIsNoDisagreement) {
  auto trace = scaled_steps(GetParam(), {{}, {}, {}});
  trace.ranks.back().events.resize(2);  // its first step and update
  EXPECT_EQ(state(trace, "local-overflow-skip"), State::clean);
  trace.ranks.back().events.clear();
  EXPECT_EQ(state(trace, "local-overflow-skip"), State::not_triggered);
}

// ---- 16 bits ----

struct Reduction {
  std::string dtype = "float16";
  bool own_overflows = false;
  bool sum_overflows = false;
};
trace::Trace reductions(int world_size, const std::vector<Reduction>& steps) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  auto trace = empty_trace(world_size);
  for (int rank = 0; rank < world_size; ++rank)
    for (std::size_t n = 0; n < steps.size(); ++n) {
      auto& events = trace.ranks[rank];
      const auto step = static_cast<std::int64_t>(n);
      const auto values = [&](bool overflows) {
        auto tensors = draw_values(5, 0, step);
        if (overflows) tensors[1][0] = kInfinity;
        return summarize(tensors);
      };
      record(events, step,
             trace::Collective{.sequence = step + 1,
                               .op = "allreduce",
                               .reduce_op = "sum",
                               .dtype = steps[n].dtype,
                               .sizes = {9}});
      const bool own = steps[n].own_overflows && rank == world_size - 1;
      record(events, step, trace::LocalGradients{4, values(own)});
      record(events, step, trace::ReducedGradients{values(steps[n].sum_overflows)});
      record(events, step, trace::Update{{0.1}});
    }
  return trace;
}

TEST_P(Clipping, ASumThatOverflows16BitsIsNamed) {
  expect_only(reductions(GetParam(), {{}, {.sum_overflows = true}, {}}), "low-precision-reduction",
              all_ranks(GetParam()), 1);
}

TEST_P(Clipping, SixteenBitsThatSufficeAreRight) {
  for (const auto* dtype : {"float16", "bfloat16"}) {
    const auto trace = reductions(GetParam(), {{.dtype = dtype}, {.dtype = dtype}});
    expect_nothing(trace);
    EXPECT_EQ(state(trace, "low-precision-reduction"), State::clean);
  }
}

TEST_P(Clipping, ARankThatOverflowsByItselfIsNotTheReduction) {
  expect_nothing(reductions(GetParam(), {{}, {.own_overflows = true, .sum_overflows = true}}));
}

TEST_P(Clipping, AnOverflowIn32BitsIsNot16Bits) {
  const auto trace =
      reductions(GetParam(), {{.dtype = "float16"}, {.dtype = "float32", .sum_overflows = true}});
  EXPECT_EQ(state(trace, "low-precision-reduction"), State::clean);
}

// As by default: nothing is recorded of what comes after the first steps.
TEST_P(Clipping, SixteenBitsInStepsThatWereNotRecordedAreNotCalledClean) {
  const auto unseen = [](trace::Trace trace, std::optional<bool> found_nonfinite) {
    for (auto& rank : trace.ranks) {
      std::erase_if(rank.events, [](const trace::Event& event) {
        return event.step >= 1 &&
               (event.is<trace::LocalGradients>() || event.is<trace::ReducedGradients>());
      });
      if (!found_nonfinite) continue;
      for (std::size_t i = 0; i < rank.events.size(); ++i)
        if (rank.events[i].is<trace::Update>()) {
          const auto step = rank.events[i].step;
          rank.events.insert(rank.events.begin() + static_cast<std::ptrdiff_t>(i++),
                             {0, step, trace::ScaledStep{1024, *found_nonfinite, true}});
        }
    }
    return trace;
  };
  const auto narrow = reductions(GetParam(), {{}, {}, {.sum_overflows = true}});
  EXPECT_EQ(state(unseen(narrow, std::nullopt), "low-precision-reduction"), State::not_triggered);
  EXPECT_EQ(state(unseen(narrow, true), "low-precision-reduction"), State::not_triggered);
  EXPECT_EQ(state(unseen(narrow, false), "low-precision-reduction"), State::clean);
  const auto wide = reductions(GetParam(), {{.dtype = "float32"}, {.dtype = "float32"}});
  EXPECT_EQ(state(unseen(wide, std::nullopt), "low-precision-reduction"), State::clean);
  auto killed = narrow;  // inside a step
  for (auto& rank : killed.ranks) rank.events.resize(rank.events.size() - 3);
  EXPECT_EQ(state(killed, "low-precision-reduction"), State::not_triggered);
}

TEST_P(Clipping, SixteenBitsNeedTheGradients) {
  const auto trace = reductions(GetParam(), {{.sum_overflows = true}});
  EXPECT_EQ(state(without<trace::ReducedGradients>(trace), "low-precision-reduction"),
            State::not_triggered);
  EXPECT_EQ(state(without<trace::LocalGradients>(trace), "low-precision-reduction"),
            State::not_triggered);
}

}  // namespace
}  // namespace lockstep::simulated
