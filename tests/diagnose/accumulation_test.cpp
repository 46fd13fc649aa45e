#include <gtest/gtest.h>

#include <utility>

#include "engine_job.h"
#include "expect.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::Severity;
using diagnose::State;

class Accumulation : public testing::TestWithParam<int> {
 protected:
  // A right job of four microbatches an update, and what `change` makes of each update's parts.
  EngineJob job(const std::function<void(Parts&)>& change = {}) const {
    EngineJob job(GetParam());
    job.parts = [change](int, int) {
      auto parts = accumulated(4);
      if (change) change(parts);
      return parts;
    };
    return job;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Accumulation, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(Accumulation, IsRightAndWasLookedAt) {
  const auto trace = job().run();
  expect_nothing(trace);
  for (const auto* slug : {"sync-every-microbatch", "no-sync-around-backward-only",
                           "accumulation-not-divided", "accumulation-off-by-one"})
    EXPECT_EQ(state(trace, slug), State::clean) << slug;
  EXPECT_EQ(state(trace, "mean-of-microbatch-means"), State::not_applicable);
}

TEST_P(Accumulation, ReducedEveryTimeIsAdvised) {
  const auto trace = job([](Parts& parts) {
                       for (auto& part : parts) part.no_sync = false;
                     }).run();
  expect_only(trace, "sync-every-microbatch", all_ranks(GetParam()), 0, Severity::advice);
  EXPECT_EQ(state(trace, "no-sync-around-backward-only"), State::clean);
}

TEST_P(Accumulation, ToldAfterForwardIsNamed) {
  const auto trace = job([](Parts& parts) {
                       for (auto& part : parts) {
                         part.told_late = part.no_sync;
                         part.no_sync = false;
                       }
                     }).run();
  expect_only(trace, "no-sync-around-backward-only", all_ranks(GetParam()), 0);
}

// The condition of NoSync is off by one: of each update a part is reduced, and not the last.
TEST_P(Accumulation, WhoseLastPartIsNotReducedIsNamed) {
  const auto trace = job([](Parts& parts) {
                       for (auto& part : parts) part.no_sync = !part.no_sync;
                     }).run();
  expect_only(trace, "no-gradient-sync", all_ranks(GetParam()), 0);
  expect_only(without<trace::Loss>(trace), "no-gradient-sync", all_ranks(GetParam()), 0);
}

TEST_P(Accumulation, ThatIsNeverReducedIsNamed) {
  const auto trace = job([](Parts& parts) { parts.back().no_sync = true; }).run();
  expect_only(trace, "no-gradient-sync", all_ranks(GetParam()), 0);
}

// Nothing is reduced, and what a rank goes by is not its own sum: it was clipped, value by value. Parameters may be
// averaged now and then.
TEST_P(Accumulation, ThatIsNeverReducedAndClippedIsAChoice) {
  auto trace = job([](Parts& parts) { parts.back().no_sync = true; }).run();
  for (const auto& [step, reduced] : each<trace::ReducedGradients>(trace))
    for (auto& value : reduced.values.front().sketch) value *= -1;
  EXPECT_EQ(state(trace, "no-gradient-sync"), State::clean);
}

// As Python records them, which knows no losses.
TEST_P(Accumulation, IsReadFromForwardsWhereThereAreNoLosses) {
  const auto run = [&](const std::function<void(Part&)>& change) {
    return without<trace::Loss>(job([&](Parts& parts) {
                                  for (auto& part : parts) change(part);
                                }).run());
  };
  expect_only(run([](Part& part) { part.no_sync = false; }), "sync-every-microbatch",
              all_ranks(GetParam()), 0, Severity::advice);
  expect_only(run([](Part& part) { part.told_late = std::exchange(part.no_sync, false); }),
              "no-sync-around-backward-only", all_ranks(GetParam()), 0);
  const auto right = run([](Part&) {});
  expect_nothing(right);
  EXPECT_EQ(state(right, "sync-every-microbatch"), State::clean);
}

// As a GAN's judge, which sees real rows and made ones, each with a backward, of one batch that was drawn.
TEST_P(Accumulation, IsNotWhatTwoForwardsOfOneBatchDo) {
  EngineJob right(GetParam());
  right.parts = [](int, int) { return Parts{{}, {.same_samples = true}}; };
  for (const auto& trace : {right.run(), without<trace::Loss>(right.run())}) {
    expect_nothing(trace);
    EXPECT_EQ(state(trace, "sync-every-microbatch"), State::not_triggered);
  }
}

TEST_P(Accumulation, OfOneReductionInManyBucketsIsRight) {
  auto right = job();
  right.buckets = 4;
  expect_nothing(right.run());
  EXPECT_EQ(state(right.run(), "sync-every-microbatch"), State::clean);
}

TEST_P(Accumulation, WithALossLoggedEveryTimeIsRight) {
  auto right = job();
  right.logs_loss = true;
  expect_nothing(right.run());
}

TEST_P(Accumulation, NotDividedIsNamed) {
  const auto trace = job([](Parts& parts) {
                       for (auto& part : parts) part.share = 1;
                     }).run();
  expect_only(trace, "accumulation-not-divided", all_ranks(GetParam()), 0);
}

// What clipping makes of the sum: a gradient of the norm `max_norm`, as of the mean, if that is longer, too.
TEST_P(Accumulation, NotDividedIsNamedWhereTheSumIsClipped) {
  const auto clipped = [&](double max_norm) {
    auto trace = job([](Parts& parts) {
                   for (auto& part : parts) part.share = 1;
                 }).run();
    for (auto& rank : trace.ranks) {
      std::vector<std::pair<std::int64_t, trace::Clip>> clips;
      for (auto [step, reduced] : each<trace::ReducedGradients>(rank)) {
        clips.push_back({step, {.max_norm = max_norm, .norm = 10, .values = reduced.values}});
        for (auto& value : reduced.values) {
          value.norm *= max_norm / 10;
          for (auto& number : value.sketch) number *= max_norm / 10;
        }
      }
      for (const auto& [step, clip] : clips) record(rank, step, clip);
    }
    return trace;
  };
  expect_only(clipped(5), "accumulation-not-divided", all_ranks(GetParam()), 0);
  expect_only(clipped(0.5), "accumulation-not-divided", all_ranks(GetParam()), 0,
              diagnose::Severity::advice);
}

TEST_P(Accumulation, DividedAtTheEndIsRight) {
  auto right = job([](Parts& parts) {
    for (auto& part : parts) part.share = 1;
  });
  right.gradients_times = 0.25;
  expect_nothing(right.run());
  EXPECT_EQ(state(right.run(), "accumulation-not-divided"), State::clean);
}

// Two losses of one batch, each with a backward of its own, are not to be divided.
TEST_P(Accumulation, IsNotWhatTwoLossesDo) {
  EngineJob right(GetParam());
  right.find_unused = true;
  right.parts = [](int, int) {
    return Parts{{.reaches = {1, 0}, .no_sync = true}, {.reaches = {2, 0}, .same_samples = true}};
  };
  expect_nothing(right.run());
}

void clear_before_each(Parts& parts) {
  for (std::size_t i = 1; i < parts.size(); ++i) parts[i].clears = true;
}

TEST_P(Accumulation, ClearedBeforeEachBackwardIsNamed) {
  const auto trace = job(clear_before_each).run();
  expect_only(trace, "gradients-cleared-too-early", all_ranks(GetParam()), 0);
  EXPECT_NE(evidence(trace).find("of the 4 backwards of this update the gradients of the first 3"),
            std::string::npos)
      << evidence(trace);
  expect_only(without<trace::Loss>(trace), "gradients-cleared-too-early", all_ranks(GetParam()), 0,
              Severity::advice);
}

// The program draws its samples itself: they are known by what the forwards are given.
TEST_P(Accumulation, OfRowsThatAreClearedIsNamed) {
  const auto fed = [&](bool again) {
    auto trace = without<trace::Samples>(without<trace::Loss>(job(clear_before_each).run()));
    for (auto& rank : trace.ranks) {
      for (const auto& [step, gradients] : each<trace::LocalGradients>(rank)) gradients.samples = 0;
      std::vector<trace::Event> events;
      std::int64_t row = 0;
      for (const auto& event : rank.events) {
        if (event.is<trace::Forward>()) {
          auto rows = event;
          rows.payload =
              trace::SharedPayload(trace::Rows{{rank.participant.rank, again ? 7 : ++row}});
          events.push_back(rows);
        }
        events.push_back(event);
      }
      rank.events = std::move(events);
    }
    return trace;
  };
  EXPECT_EQ(state(fed(false), "gradients-cleared-too-early"), State::found);
  EXPECT_EQ(state(fed(true), "gradients-cleared-too-early"), State::not_triggered);
}

// As SAM, which goes to another place by the first gradient, and from there by the second.
TEST_P(Accumulation, OfWholeLossesThatAreClearedIsRight) {
  expect_nothing(job([](Parts& parts) {
                   clear_before_each(parts);
                   for (auto& part : parts) part.share = 1;
                 }).run());
}

TEST_P(Accumulation, OfWhichOnlyAHeadIsClearedIsRight) {
  auto trace = job(clear_before_each).run();
  for (auto& rank : trace.ranks)
    std::erase_if(rank.events, [](const auto& event) {
      const auto* cleared = event.template as<trace::GradientCleared>();
      return cleared != nullptr && cleared->parameter < 2;
    });
  EXPECT_EQ(state(trace, "gradients-cleared-too-early"), State::clean);
}

// A batch whose loss is not finite, say: its gradient is cleared, and the next batch's is taken.
TEST_P(Accumulation, OfWhichABatchIsLeftOutNowAndThenIsRight) {
  EngineJob right(GetParam());
  right.steps = 8;
  right.find_unused = true;
  right.parts = [](int, int step) {
    return step % 3 == 1 ? Parts{{.no_sync = true}, {.clears = true}} : Parts{Part{}};
  };
  expect_nothing(right.run());
  right.parts = [](int, int) {
    auto parts = accumulated(4);
    parts[1].clears = true;
    return parts;
  };
  EXPECT_EQ(state(right.run(), "gradients-cleared-too-early"), State::clean);
}

// Each part's gradient is put aside before it is cleared, and all are put together before the update.
TEST_P(Accumulation, OfGradientsThatArePutTogetherByHandIsRight) {
  auto trace = job(clear_before_each).run();
  for (const auto& [step, reduced] : each<trace::ReducedGradients>(trace))
    for (std::size_t i = 0; i < reduced.values.size(); ++i)
      for (auto& value : reduced.values[i].sketch) value += 0.3 * static_cast<double>(i + 1);
  EXPECT_EQ(state(trace, "gradients-cleared-too-early"), State::clean);
}

TEST_P(Accumulation, OffByOneIsNamedAtTheFirstUpdate) {
  EngineJob wrong(GetParam());
  wrong.parts = [](int, int step) {
    auto parts = accumulated(4);
    if (step == 0) parts.erase(parts.begin(), parts.begin() + 3);
    return parts;
  };
  expect_only(wrong.run(), "accumulation-off-by-one", all_ranks(GetParam()), 0);
}

TEST_P(Accumulation, WithAShortLastGroupIsRight) {
  EngineJob right(GetParam());
  right.parts = [](int, int step) { return accumulated(step == 3 ? 2 : 4); };
  expect_nothing(right.run());
  EXPECT_EQ(state(right.run(), "accumulation-off-by-one"), State::clean);
}

TEST_P(Accumulation, OfAGrowingBatchIsRight) {
  EngineJob right(GetParam());
  right.parts = [](int, int step) { return accumulated(1 << step); };
  expect_nothing(right.run());
}

void make_uneven(Parts& parts) {
  const std::int64_t sizes[] = {6, 6, 6, 2};
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i].samples = sizes[i];
}

TEST_P(Accumulation, OfMeansOfUnevenPartsIsNamed) {
  expect_only(job(make_uneven).run(), "mean-of-microbatch-means", all_ranks(GetParam()), 0);
}

TEST_P(Accumulation, OfWeightedMeansOfUnevenPartsIsRight) {
  const auto trace = job([](Parts& parts) {
                       make_uneven(parts);
                       for (auto& part : parts) part.share = static_cast<double>(part.samples) / 20;
                     }).run();
  expect_nothing(trace);
  EXPECT_EQ(state(trace, "mean-of-microbatch-means"), State::clean);
}

TEST_P(Accumulation, NeedsItsLossesAndAnUpdate) {
  const auto whole = job().run();
  const auto no_losses = without<trace::Loss>(whole);
  for (const auto* slug :
       {"sync-every-microbatch", "no-sync-around-backward-only", "accumulation-not-divided",
        "accumulation-off-by-one", "mean-of-microbatch-means"}) {
    EXPECT_EQ(state(without<trace::Forward>(no_losses), slug), State::not_triggered) << slug;
    EXPECT_EQ(state(without<trace::Update>(whole), slug), State::not_triggered) << slug;
  }
  for (const auto* slug :
       {"accumulation-not-divided", "accumulation-off-by-one", "mean-of-microbatch-means"}) {
    EXPECT_EQ(state(no_losses, slug), State::not_triggered) << slug;
    EXPECT_EQ(state(without<trace::Intent>(whole), slug), State::not_triggered) << slug;
  }
  EXPECT_EQ(state(without<trace::Model>(whole), "sync-every-microbatch"), State::not_triggered);
  EXPECT_EQ(state(without<trace::ReducedGradients>(whole), "accumulation-not-divided"),
            State::not_triggered);
}

TEST_P(Accumulation, CutAnywhereStaysClean) {
  const auto whole = job().run();
  for (std::size_t length = 0; length < whole.ranks[0].events.size(); length += 3) {
    const auto cut = cut_at(whole, length);
    expect_nothing(cut);
    // As a program does that tells its engine and not its trace.
    expect_nothing(without<trace::SyncGradients>(cut));
  }
}

TEST(AccumulationOnOneRank, HasNobodyToTalkTo) {
  EngineJob one(1);
  one.parts = [](int, int) { return accumulated(4); };
  EXPECT_EQ(state(one.run(), "sync-every-microbatch"), State::not_applicable);
  EXPECT_EQ(state(one.run(), "no-sync-around-backward-only"), State::not_applicable);
  one.parts = [](int, int) {
    auto parts = accumulated(4);
    for (auto& part : parts) part.share = 1;
    return parts;
  };
  expect_only(one.run(), "accumulation-not-divided", {0}, 0);
}

}  // namespace
}  // namespace lockstep::simulated
