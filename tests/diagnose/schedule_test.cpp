#include <gtest/gtest.h>
#include <lockstep/trace/attempts.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

// A run's schedule and updates: what it moves by, and the rate that it gives.
struct Scheduled {
  int world_size = 2;
  int passes = 3;
  int first_pass = 0;
  std::int64_t goes_on_at = 0;  // position
  std::int64_t of_pass = 20;    // updates
  std::int64_t length = 60;     // 0: it does not say
  std::int64_t for_update = 1;  // steps
  std::int64_t for_last = 0;    // of a pass, where not 0
  std::int64_t for_pass = 0;
  double falls_to = 0;  // of a cosine from 1, over the schedule's length; it rises again after it

  trace::Trace run() const {
    auto trace = empty_trace(world_size);
    for (auto& rank : trace.ranks) {
      std::int64_t position = goes_on_at, step = 0;
      record(rank, step, trace::Schedule{0, length});
      for (int pass = first_pass; pass < first_pass + passes; ++pass) {
        record(rank, step, trace::PassBegin{"train", pass});
        for (std::int64_t i = 0; i < of_pass; ++i) {
          const double share =
              static_cast<double>(position) / static_cast<double>(length > 0 ? length : 60);
          const double cosine = (1 + std::cos(std::numbers::pi * share)) / 2;
          record(rank, step++, trace::Update{{falls_to + (1 - falls_to) * cosine}});
          if (for_update == 0) continue;
          position += for_last > 0 && i + 1 == of_pass ? for_last : for_update;
          record(rank, step, trace::Schedule{position, length});
        }
        if (for_pass > 0) record(rank, step, trace::Schedule{position += for_pass, length});
        record(rank, step, trace::PassEnd{"train", pass, of_pass});
      }
    }
    return trace;
  }
};

class Schedule : public testing::TestWithParam<int> {
 protected:
  Scheduled right() const { return {.world_size = GetParam()}; }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Schedule, kTwoAndThree, testing::PrintToStringParamName());

const char* const kScheduleSlugs[] = {"scheduler-stepped-per-rank", "schedule-unit-mismatch",
                                      "schedule-length-ignores-world-size"};

TEST_P(Schedule, OfUnknownLengthThatTakesSeveralStepsAnUpdateIsAdvice) {
  auto job = right();
  job.length = 0;
  EXPECT_EQ(state(job.run(), "schedule-stepped-again"), State::clean);
  job.for_last = 2;  // a pass has one more
  EXPECT_EQ(state(job.run(), "schedule-stepped-again"), State::clean);
  job.for_update = job.for_last = 4;
  expect_only(job.run(), "schedule-stepped-again", all_ranks(GetParam()), 0,
              diagnose::Severity::advice);
  auto cut_short = job.run();  // the run ends right behind an update
  for (auto& rank : cut_short.ranks) rank.events.resize(rank.events.size() - 3);
  EXPECT_EQ(state(cut_short, "schedule-stepped-again"), State::found);
}

TEST_P(Schedule, WhoseRatesStayWhileItGoesOnIsLeftOpen) {
  const auto line = [&](std::int64_t stays_from) {
    auto trace = right().run();
    for (auto [step, update] : each<trace::Update>(trace))
      update.lr = {std::cos(static_cast<double>(std::min(step, stays_from)) / 60)};
    return diagnose::diagnose(trace).ledger.at(static_cast<std::size_t>(diagnose::Equation::rates));
  };
  EXPECT_EQ(line(30).standing, diagnose::Standing::open);
  EXPECT_EQ(line(30).step, 31);
  EXPECT_NE(line(30).reason.find("takes 29 more steps"), std::string::npos) << line(30).reason;
  EXPECT_EQ(line(60).standing, diagnose::Standing::held) << line(60).reason;
}

TEST_P(Schedule, OfUnknownLengthThatTakesAStepForEachRankIsLeftOpen) {
  auto job = right();
  job.length = 0;
  job.for_update = job.for_last = GetParam();
  const auto diagnosis = diagnose::diagnose(job.run());
  EXPECT_TRUE(diagnosis.findings.empty());
  const auto& line = diagnosis.ledger.at(static_cast<std::size_t>(diagnose::Equation::rates));
  EXPECT_EQ(line.standing, diagnose::Standing::open);
  EXPECT_NE(line.reason.find("counts the batches of all ranks"), std::string::npos) << line.reason;
}

TEST_P(Schedule, ThatStoodFurtherOnInACheckpointIsNotToBeginAnew) {
  const auto resumed = [&](std::int64_t at) {
    auto job = right();
    job.passes = 1;
    auto trace = job.run();
    auto& rank = trace.ranks.front();
    trace::CheckpointFile file{.action = "save_end", .file = 1, .content = 7};
    file.accepted = true;
    record(rank, 20, file);
    file.action = "load";
    record(rank, 20, file);
    for (std::int64_t step = 20; step < 24; ++step) {
      record(rank, step, trace::Update{{0.1}});
      record(rank, step + 1, trace::Schedule{at + step - 19, 60});
    }
    return trace;
  };
  EXPECT_EQ(state(resumed(0), "schedule-begins-anew"), State::found);
  EXPECT_EQ(state(resumed(20), "schedule-begins-anew"), State::clean);
}

TEST_P(Schedule, OfAKindThatShareAnOptimizerAreAdvice) {
  auto trace = right().run();
  for (auto& rank : trace.ranks) record(rank, 2, trace::ScheduleTwins{"ExponentialLR", 2});
  expect_only(trace, "optimizer-without-schedule", all_ranks(GetParam()), 0,
              diagnose::Severity::advice);
}

// The rates of a schedule that does not say how long it is: along half a cosine, in a line, or by a factor.
TEST_P(Schedule, OfUnknownLengthThatIsTooLongIsNamedByItsCurve) {
  const int ranks = GetParam();
  const auto rates = [&](auto rate) {
    auto job = right();
    job.length = 0;
    auto trace = job.run();
    for (auto [step, update] : each<trace::Update>(trace)) update.lr = {rate(step)};
    return trace;
  };
  const auto cosine = [&](int updates) {
    return rates([updates](auto step) {
      return (1 + std::cos(std::numbers::pi * static_cast<double>(step) / updates)) / 2;
    });
  };
  const auto line = [&](int updates) {
    return rates([updates](auto step) { return 1 - static_cast<double>(step) / updates; });
  };
  expect_only(cosine(60 * ranks), "schedule-length-ignores-world-size", all_ranks(ranks), 59);
  expect_only(line(60 * ranks), "schedule-length-ignores-world-size", all_ranks(ranks), 59,
              diagnose::Severity::advice);
  for (const auto& right : {cosine(60), cosine(75), line(60), line(60 * ranks + 80)})
    expect_nothing(right);
  expect_nothing(rates([](auto step) { return std::pow(0.97, static_cast<double>(step)); }));
}

TEST_P(Schedule, ThatIsAtItsEndAfterTheRunsLastPartIsNotTooLong) {
  auto job = right();
  job.length = 60 * GetParam();
  auto trace = job.run();
  const auto slug = "schedule-length-ignores-world-size";
  EXPECT_EQ(state(trace, slug), State::found);
  const auto done = job.length - 60;  // by attempts before
  for (auto [step, schedule] : each<trace::Schedule>(trace)) schedule.position += done;
  EXPECT_EQ(state(trace, slug), State::clean);
}

TEST_P(Schedule, AsLongAsTheRunIsRight) {
  expect_nothing(right().run());
  for (const auto* slug : kScheduleSlugs)
    EXPECT_EQ(state(right().run(), slug), State::clean) << slug;
}

TEST_P(Schedule, SteppedForEveryRankIsNamed) {
  auto job = right();
  job.for_update = GetParam();
  expect_only(job.run(), "scheduler-stepped-per-rank", all_ranks(GetParam()), 0);
}

TEST_P(Schedule, SteppedForEveryRankAndAsManyTimesAsLongIsRight) {
  auto job = right();
  job.for_update = GetParam();
  job.length *= GetParam();
  expect_nothing(job.run());
}

TEST_P(Schedule, OfOneRanksUpdatesIsNamed) {
  auto job = right();
  job.length *= GetParam();
  expect_only(job.run(), "schedule-length-ignores-world-size", all_ranks(GetParam()), 59);
}

// A job that is to go on saves its optimizer last, and stops where somebody wants it to.
TEST_P(Schedule, OfOneRanksUpdatesIsAdviceWhereTheJobMayGoOn) {
  auto job = right();
  job.length *= GetParam();
  auto trace = job.run();
  record(trace.ranks[0], 60,
         trace::TrainingState{"saved", {"model", "optimizer"}, {1, 2}, {"cpu", "cpu"}});
  expect_only(trace, "schedule-length-ignores-world-size", all_ranks(GetParam()), 59,
              diagnose::Severity::advice);
  auto& events = trace.ranks[0].events;
  std::rotate(events.end() - 20, events.end() - 1, events.end());  // it went on
  expect_only(trace, "schedule-length-ignores-world-size", all_ranks(GetParam()), 59);
}

// Ranks that a peer has left close their traces, too.
TEST_P(Schedule, OfARunThatHungSaysNothing) {
  auto job = right();
  job.length *= GetParam();
  auto trace = job.run();
  for (auto& rank : trace.ranks)
    if (rank.participant.rank != 1)
      record(rank, 60, trace::Collective{.failed = 1, .group = "0", .op = "barrier"});
  for (const auto* slug : {"schedule-length-ignores-world-size", "schedule-ends-elsewhere"})
    EXPECT_EQ(state(trace, slug), State::not_triggered) << slug;
}

// 20 updates of a rank's share of an epoch are all but 20 W of the whole: each share is rounded up.
TEST_P(Schedule, OfOneRanksUpdatesIsNamedWhereSharesAreRoundedUp) {
  auto job = right();
  job.length = job.passes * (20 * GetParam() - GetParam() + 1);
  expect_only(job.run(), "schedule-length-ignores-world-size", all_ranks(GetParam()), 59);
}

TEST_P(Schedule, CountedInSamplesIsRightIfItCountsThoseOfAllRanks) {
  auto job = right();
  job.length = 60 * 32 * GetParam();
  job.for_update = 32 * GetParam();
  expect_nothing(job.run());
  job.for_update = 32;
  expect_only(job.run(), "schedule-length-ignores-world-size", all_ranks(GetParam()), 59);
}

TEST_P(Schedule, OfARunThatStoppedEarlyIsRight) {
  auto job = right();
  job.passes = 2;
  expect_nothing(job.run());
}

TEST_P(Schedule, AtItsEndLongBeforeTheRunIsAdvice) {
  auto job = right();
  job.for_update = 4;  // one for each of four micro-batches
  job.falls_to = 1;
  expect_only(job.run(), "schedule-ends-elsewhere", all_ranks(GetParam()), 15,
              diagnose::Severity::advice);
  job.for_last = 2;  // the last update of a pass has two
  job.of_pass = 7;
  expect_only(job.run(), "schedule-ends-elsewhere", all_ranks(GetParam()), 16,
              diagnose::Severity::advice);
  job.length *= 4;
  expect_nothing(job.run());
}

// A limit on an epoch's batches, which was left in.
TEST_P(Schedule, OfARunThatLeavesEachPassEarlyIsAdvice) {
  auto job = right();
  job.length = 300;
  expect_only(without<trace::PassEnd>(job.run()), "schedule-ends-elsewhere", all_ranks(GetParam()),
              59, diagnose::Severity::advice);
  job.length = 60;
  expect_nothing(without<trace::PassEnd>(job.run()));
}

TEST_P(Schedule, ThatBeginsAnewWhereAnotherAttemptGoesOnIsAdvice) {
  auto first = right();
  first.length = 2 * 60;
  auto second = first;
  second.first_pass = 3;
  const auto job = [&] { return trace::concatenate({first.run(), second.run()}); };
  const int begins = 60 + 2;  // an attempt begins behind the end of the one before
  expect_only(job(), "schedule-begins-anew", all_ranks(GetParam()), begins,
              diagnose::Severity::advice);
  second.length = 60;  // for what remains
  expect_nothing(job());
  second.length = first.length;
  second.goes_on_at = 60;
  expect_nothing(job());
  second = first;  // all is trained again
  expect_nothing(job());
}

// Python tells where a schedule stands once it has stepped.
TEST_P(Schedule, OfAWarmUpThatIsOverWhereTheJobGoesOnIsRight) {
  auto job = right();
  job.falls_to = 1;
  auto trace = job.run();
  for (auto& rank : trace.ranks) {
    std::erase_if(rank.events, [](const auto& event) {
      const auto* schedule = event.template as<trace::Schedule>();
      return schedule != nullptr && schedule->position == 0;
    });
  }
  for (auto [step, schedule] : each<trace::Schedule>(trace)) schedule.position += 5000;
  expect_nothing(trace);
}

TEST_P(Schedule, OfAboutAsManyUpdatesSteppedOnceAPassIsAdvice) {
  auto job = right();
  job.for_update = 0;
  job.for_pass = 1;
  job.length = 61;
  expect_only(job.run(), "schedule-ends-elsewhere", all_ranks(GetParam()), 20,
              diagnose::Severity::advice);
}

// Rounds of many lengths, which are no passes over a data set.
TEST_P(Schedule, OfAboutAsManyUpdatesSteppedNowAndThenIsAdvice) {
  auto job = right();
  job.for_update = 0;
  job.for_pass = 1;
  job.length = 61;
  auto trace = job.run();
  for (auto& rank : trace.ranks)
    std::erase_if(rank.events, [](const auto& event) {
      return event.template is<trace::PassBegin>() || event.template is<trace::PassEnd>();
    });
  expect_only(trace, "schedule-ends-elsewhere", all_ranks(GetParam()), 20,
              diagnose::Severity::advice);
  for (auto [step, schedule] : each<trace::Schedule>(trace)) schedule.length = 90;
  expect_nothing(trace);
}

TEST_P(Schedule, ThatHasHardlyBegunWhenTheRunEndsIsAdvice) {
  auto job = right();
  job.length = 5 * 60;
  expect_only(job.run(), "schedule-ends-elsewhere", all_ranks(GetParam()), 59,
              diagnose::Severity::advice);
  auto killed = job.run();
  for (auto& rank : killed.ranks) rank.closed = false;
  EXPECT_EQ(state(killed, "schedule-ends-elsewhere"), State::not_triggered);
}

TEST_P(Schedule, OfAModelThatIsTrainedAfterAnotherIsJudgedByItsOwnUpdates) {
  auto job = right();
  job.length *= GetParam();
  auto trace = job.run();
  for (auto& rank : trace.ranks) {
    auto before = empty_trace(1).ranks.front();
    for (std::int64_t step = 0; step < 30; ++step) record(before, step, trace::Update{{1}});
    record(before, 30, trace::Engine{"distributed_data_parallel", 2});
    rank.events.insert(rank.events.begin(), before.events.begin(), before.events.end());
  }
  EXPECT_EQ(state(trace, "schedule-length-ignores-world-size"), State::found);
}

TEST_P(Schedule, OfARunThatWasKilledSaysNothingOfItsLength) {
  auto job = right();
  job.length *= GetParam();
  auto trace = job.run();
  for (auto& rank : trace.ranks) rank.closed = false;
  EXPECT_EQ(state(trace, "schedule-length-ignores-world-size"), State::not_triggered);
}

TEST_P(Schedule, OfUpdatesSteppedOnceAPassIsNamed) {
  auto job = right();
  job.for_update = 0;
  job.for_pass = 1;
  expect_only(job.run(), "schedule-unit-mismatch", all_ranks(GetParam()), 20);
}

TEST_P(Schedule, OfPassesSteppedOnceAPassIsRight) {
  auto job = right();
  job.for_update = 0;
  job.for_pass = 1;
  job.length = 3;
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "schedule-unit-mismatch"), State::clean);
}

// As many steps as some number of updates, and nothing says that no more passes were to come.
TEST_P(Schedule, OfManyPassesInARunThatStopsEarlyIsRight) {
  auto job = right();
  job.for_update = 0;
  job.for_pass = 1;
  for (const std::int64_t length :
       {31, 50, 100, 50 * GetParam(), 60 * GetParam(), 90 * GetParam()}) {
    job.length = length;
    expect_nothing(job.run());
  }
  job.length = 100;
  for (job.passes = 2; job.passes <= 10; ++job.passes) {
    if (job.passes * job.of_pass != job.length)
      expect_nothing(job.run());  // else it looks the same
  }
}

TEST_P(Schedule, OfManyPassesInARunThatIsCutIsRight) {
  auto job = right();
  job.for_update = 0;
  job.for_pass = 1;
  job.length = 100;
  for (job.passes = 2; job.passes <= 10; ++job.passes) {
    auto killed = job.run(), broken_off = job.run();
    for (auto& rank : killed.ranks) rank.closed = false;
    for (auto& rank : broken_off.ranks) rank.events.pop_back();  // the end of its last pass
    expect_nothing(killed);
    expect_nothing(broken_off);
  }
  job.passes = 5;
  auto trace = job.run();
  for (auto& rank : trace.ranks) rank.closed = false;
  EXPECT_EQ(state(trace, "schedule-unit-mismatch"), State::not_triggered);
}

TEST_P(Schedule, OfPassesSteppedForEveryUpdateIsNamed) {
  auto job = right();
  job.length = 3;
  expect_only(job.run(), "schedule-unit-mismatch", all_ranks(GetParam()), 3);
}

TEST_P(Schedule, ThatEndsAndLeavesTheRateAloneIsRight) {
  auto job = right();
  job.length = 3;
  job.falls_to = 1;
  expect_nothing(job.run());
}

// A warm-up is over, and the program halves the rate after each pass.
TEST_P(Schedule, ThatEndsAndLeavesTheRateToTheProgramIsRight) {
  auto job = right();
  job.length = 10;
  auto trace = job.run();
  for (auto [step, update] : each<trace::Update>(trace))
    update.lr = {std::min(1.0, 0.1 * static_cast<double>(step + 1)) / std::pow(2, step / 20)};
  expect_nothing(trace);
}

// Two schedules, each stepped with every update: a warm-up, and one that goes on.
TEST_P(Schedule, BesideAnotherHasNoLength) {
  auto job = right();
  job.length = 60;
  auto trace = job.run();
  for (auto& rank : trace.ranks) {
    std::vector<trace::Event> events;
    for (const auto& event : rank.events) {
      events.push_back(event);
      const auto* schedule = event.as<trace::Schedule>();
      if (!schedule || schedule->position == 0) continue;
      events.push_back(event);
      events.back().payload = trace::SharedPayload(trace::Schedule{schedule->position, 5});
    }
    rank.events = std::move(events);
  }
  expect_nothing(trace);
}

// 100 + 1000 steps, 10 epochs of 10,000 samples in batches of 64: on one rank it rises again after 1,100
// updates; stepped once an epoch, it never leaves the warm-up.
TEST(ScheduleOfArticleD, IsNamedEitherWay) {
  Scheduled job{.world_size = 1, .passes = 10, .of_pass = 157, .length = 1100};
  expect_only(job.run(), "schedule-unit-mismatch", {0}, 1100);
  job.for_update = 0;
  job.for_pass = 1;
  expect_only(job.run(), "schedule-unit-mismatch", {0}, 157);
  job.world_size = 4;
  job.of_pass = 40;
  expect_only(job.run(), "schedule-unit-mismatch", all_ranks(4), 40);
}

TEST_P(Schedule, NeedsTheScheduleItsLengthAndUpdates) {
  auto job = right();
  job.length *= GetParam();
  for (const auto* slug : kScheduleSlugs) {
    EXPECT_EQ(state(without<trace::Schedule>(job.run()), slug), State::not_triggered) << slug;
    EXPECT_EQ(state(without<trace::Update>(job.run()), slug), State::not_triggered) << slug;
  }
  job.length = 0;
  for (const auto* slug : kScheduleSlugs)
    EXPECT_EQ(state(job.run(), slug), State::not_triggered) << slug;
}

TEST(ScheduleOfOneRank, HasNoOtherRanksToCount) {
  const Scheduled job{.world_size = 1};
  EXPECT_EQ(state(job.run(), "scheduler-stepped-per-rank"), State::not_applicable);
  EXPECT_EQ(state(job.run(), "schedule-length-ignores-world-size"), State::not_applicable);
}

}  // namespace
}  // namespace lockstep::simulated
