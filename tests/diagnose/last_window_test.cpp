// The batches that a pass leaves behind its last update: lost, carried over, or never there.
#include <gtest/gtest.h>

#include <algorithm>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

constexpr const char* kWindowLost = "last-accumulation-window-lost";

// A job that accumulates over its passes. A test changes what the program does, never what is recorded of it.
struct Passes {
  enum class Tail { updated, lost, carried_over };
  enum class Clear { before_pass, after_first_draw, after_pass };

  int world_size = 2;
  int passes = 2;
  std::int64_t samples_of_rank = 14 * 4;  // in batches of 4
  std::function<std::int64_t(int rank)> batches = [](int) { return 14; };
  std::function<std::int64_t(std::int64_t update)> window = [](std::int64_t) { return 4; };
  Tail tail = Tail::lost;
  Clear clear = Clear::before_pass;
  bool tells_clearing = true;
  std::int64_t trained_batches = 1'000'000;  // of a pass; what comes after is drawn only
  std::function<bool(std::int64_t step)> tells_losses = [](std::int64_t) { return true; };
  bool tells_forwards = false;
  std::function<bool(std::int64_t update)> skipped = [](std::int64_t) { return false; };
  int updates_a_window = 1;
  std::int64_t declared = 4;  // batches that an update has, as the program says; 0: it says nothing

  explicit Passes(int ranks) : world_size(ranks) {}

  trace::Trace run() const {
    auto trace = empty_trace(world_size);
    for (int r = 0; r < world_size; ++r) Program(*this, r, trace.ranks[r]).run();
    return trace;
  }

 private:
  class Program {
   public:
    Program(const Passes& how, int rank, trace::ParticipantTrace& trace)
        : how_(how), rank_(rank), trace_(trace) {}

    void run() {
      const auto size = how_.samples_of_rank * how_.world_size;
      tell(trace::Intent{.global_batch = how_.declared * 4 * how_.world_size,
                         .loss_reduction = "mean"});
      tell(trace::Engine{"distributed_data_parallel", 2});
      tell(trace::Dataset{"train", size, size, 11, 12, 13});
      step_ = 0;
      for (int pass = 0; pass < how_.passes; ++pass) train(pass);
    }

   private:
    void tell(trace::SharedPayload payload) { record(trace_, step_, std::move(payload)); }
    void clear() {
      if (how_.tells_clearing) tell(trace::ZeroGrad{"optimizer", 2, 0});
      in_window_ = 0;
    }

    void train(int pass) {
      const bool clears = how_.tail != Tail::carried_over;
      if (clears && how_.clear == Clear::before_pass) clear();
      tell(trace::PassBegin{"train", pass});
      const auto all = how_.batches(rank_);
      for (std::int64_t i = 0; i < all; ++i) {
        draw(i);
        if (i == 0 && clears && how_.clear == Clear::after_first_draw) clear();
        if (i < how_.trained_batches) backward();
        const bool full = in_window_ == how_.window(updates_);
        if (full || (i + 1 == all && how_.tail == Tail::updated)) update();
      }
      tell(trace::PassEnd{"train", pass, all});
      if (clears && how_.clear == Clear::after_pass && pass + 1 < how_.passes) clear();
    }
    void draw(std::int64_t i) {
      Ids ids;
      for (std::int64_t k = 4 * i; k < 4 * i + 4; ++k) ids.push_back(k * how_.world_size + rank_);
      tell(trace::Samples{"train", ids});
    }
    void backward() {
      const double share = 1.0 / static_cast<double>(how_.window(updates_));
      if (how_.tells_forwards) tell(trace::Forward{true});
      if (how_.tells_losses(step_)) tell(trace::Loss{2 * share, 2.0 * 4, 4});
      ++in_window_;
    }
    void update() {
      if (how_.skipped(updates_++)) {
        tell(trace::ScaledStep{1024, true, false});
      } else {
        for (int i = 0; i < how_.updates_a_window; ++i, ++step_) tell(trace::Update{{0.1}});
      }
      clear();
    }

    const Passes& how_;
    int rank_;
    trace::ParticipantTrace& trace_;
    std::int64_t step_ = -1, updates_ = 0, in_window_ = 0;
  };
};

void expect_unnamed(const trace::Trace& trace, State wanted) {
  expect_nothing(trace);
  EXPECT_EQ(state(trace, kWindowLost), wanted);
}

class LastWindow : public testing::TestWithParam<int> {
 protected:
  Passes job(Passes::Tail tail = Passes::Tail::lost) const {
    Passes passes(GetParam());
    passes.tail = tail;
    return passes;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, LastWindow, kOneToThree, testing::PrintToStringParamName());

TEST_P(LastWindow, ThatIsClearedIsNamed) {
  for (const auto clear :
       {Passes::Clear::before_pass, Passes::Clear::after_first_draw, Passes::Clear::after_pass}) {
    auto lost = job();
    lost.clear = clear;
    expect_only(lost.run(), kWindowLost, all_ranks(GetParam()), 3);
  }
}

TEST_P(LastWindow, OfASingleBatchIsNamed) {
  auto lost = job();
  lost.batches = [](int) { return 13; };
  lost.samples_of_rank = 13 * 4;
  expect_only(lost.run(), kWindowLost, all_ranks(GetParam()), 3);
}

TEST_P(LastWindow, OfTheOnlyPassIsNamed) {
  auto lost = job();
  lost.passes = 1;
  expect_only(lost.run(), kWindowLost, all_ranks(GetParam()), 3);
  lost.tells_clearing = false;  // nothing is to be cleared
  expect_only(lost.run(), kWindowLost, all_ranks(GetParam()), 3);
}

TEST_P(LastWindow, WhoseForwardsAreRecordedIsNamed) {
  auto lost = job();
  lost.tells_losses = [](std::int64_t) { return false; };
  lost.tells_forwards = true;
  expect_only(lost.run(), kWindowLost, all_ranks(GetParam()), 3);
}

TEST_P(LastWindow, ThatMakesAnUpdateIsRight) {
  expect_unnamed(job(Passes::Tail::updated).run(), State::clean);
}

TEST_P(LastWindow, ThatIsFullIsRight) {
  auto full = job();
  full.batches = [](int) { return 12; };  // as a sampler deals that leaves the tail out
  expect_unnamed(full.run(), State::clean);
}

TEST_P(LastWindow, CarriedOverIsAChoice) {
  for (const int passes : {2, 3}) {  // of three, two batches are left at the very end
    auto carried = job(Passes::Tail::carried_over);
    carried.passes = passes;
    expect_unnamed(carried.run(), State::clean);
  }
}

TEST_P(LastWindow, DrawnAndNotTrainedOnIsAChoice) {
  auto drawn = job();
  drawn.trained_batches = 12;
  expect_unnamed(drawn.run(), State::not_triggered);
}

TEST_P(LastWindow, OfWhichNoLossWasSampledIsNotKnown) {
  auto sampled = job();
  sampled.tells_losses = [](std::int64_t step) { return step < 3; };
  expect_unnamed(sampled.run(), State::not_triggered);
}

// The first pass ends at step 3, the second at step 6.
TEST_P(LastWindow, IsNamedWhereItsLossesWereSampled) {
  auto sampled = job();
  sampled.passes = 3;
  sampled.clear = Passes::Clear::after_first_draw;
  sampled.tells_losses = [](std::int64_t step) { return step >= 4; };
  expect_only(sampled.run(), kWindowLost, all_ranks(GetParam()), 6);
}

TEST_P(LastWindow, IsNotKnownWhereNobodyTellsOfClearing) {
  auto silent = job();
  silent.tells_clearing = false;
  expect_unnamed(silent.run(), State::not_triggered);
}

// A step that is left out for its infinities ends its window.
TEST_P(LastWindow, LeftOutByALossScalerIsRight) {
  auto scaled = job(Passes::Tail::updated);
  scaled.skipped = [](std::int64_t update) { return update % 4 == 3; };
  expect_unnamed(scaled.run(), State::clean);
}

TEST_P(LastWindow, OfARunThatStopsInsideAPassIsAChoice) {
  auto early = job();
  early.passes = 1;
  early.samples_of_rank = 20 * 4;
  expect_unnamed(early.run(), State::clean);
}

TEST_P(LastWindow, OfARunThatUpdatesNoMoreIsAnotherMatter) {
  auto stopped = job();
  stopped.passes = 1;
  stopped.window = [](std::int64_t update) { return update < 2 ? 4 : 100; };
  expect_unnamed(stopped.run(), State::clean);
}

TEST_P(LastWindow, OfOneBatchCannotBeCutShort) {
  auto each = job();
  each.window = [](std::int64_t) { return 1; };
  expect_unnamed(each.run(), State::not_applicable);
}

TEST_P(LastWindow, OfAGrowingBatchIsNotKnown) {
  auto growing = job();
  growing.window = [](std::int64_t update) { return update + 2; };
  expect_unnamed(growing.run(), State::not_triggered);
}

// As a generator and its critic have: the second update is of no batch.
TEST_P(LastWindow, OfTwoOptimizersIsNotKnown) {
  auto two = job();
  two.updates_a_window = 2;
  expect_unnamed(two.run(), State::not_triggered);
}

TEST_P(LastWindow, OfAJobThatEndsOtherwiseIsNotKnown) {
  auto job = this->job();
  job.passes = 1;
  auto trace = job.run();
  trace.ranks.back().closed = false;
  expect_unnamed(trace, State::not_triggered);
  trace = job.run();
  trace.ranks.back().truncated = true;
  expect_unnamed(trace, State::not_triggered);
  trace = job.run();
  trace.ends = {{.rank = 0, .how = "raised", .exit_code = 1}};
  EXPECT_EQ(state(trace, kWindowLost), State::not_triggered);
}

// The last rank's data end earlier, and the others go on.
TEST_P(LastWindow, OfRanksWithUnevenDataIsNotJudged) {
  auto uneven = job();
  uneven.world_size = std::max(2, GetParam());  // one rank is even with itself
  uneven.batches = [last = uneven.world_size - 1](int rank) { return rank == last ? 10 : 14; };
  EXPECT_EQ(state(uneven.run(), kWindowLost), State::not_triggered);
}

// Equally many batches, and updates of others before the pass ends: the step tells.
TEST_P(LastWindow, OfAShadowedRankIsNotJudged) {
  auto trace = job().run();
  for (auto& rank : trace.ranks)
    for (auto& event : rank.events)
      if (event.is<trace::PassEnd>()) ++event.step;
  expect_unnamed(trace, State::clean);
}

// A loss of an evaluation inside the pass is none of a batch that was drawn and left.
TEST_P(LastWindow, IsNotProvedByAnEvaluation) {
  auto drawn = job();
  drawn.trained_batches = 12;
  auto trace = drawn.run();
  for (auto& rank : trace.ranks)
    for (std::size_t i = 0; i < rank.events.size(); ++i) {
      if (!rank.events[i].is<trace::PassEnd>()) continue;
      const auto step = rank.events[i].step;
      const std::vector<trace::Event> evaluation{{0, step, trace::PassBegin{"evaluation", 0}},
                                                 {0, step, trace::Loss{2, 8, 4}},
                                                 {0, step, trace::PassEnd{"evaluation", 0, 1}}};
      rank.events.insert(rank.events.begin() + static_cast<std::ptrdiff_t>(i), evaluation.begin(),
                         evaluation.end());
      i += evaluation.size();
    }
  expect_unnamed(trace, State::not_triggered);
}

TEST_P(LastWindow, OfAnEarlierAttemptIsNotJudged) {
  auto trace = job().run();
  for (auto& rank : trace.ranks) rank.last_attempt = rank.events.size();
  EXPECT_EQ(state(trace, kWindowLost), State::not_triggered);
}

TEST_P(LastWindow, NeedsPassesSamplesAndUpdates) {
  const auto whole = job().run();
  EXPECT_EQ(state(without<trace::PassBegin>(whole), kWindowLost), State::not_triggered);
  EXPECT_EQ(state(without<trace::PassEnd>(whole), kWindowLost), State::not_triggered);
  EXPECT_EQ(state(without<trace::Samples>(whole), kWindowLost), State::not_triggered);
  EXPECT_EQ(state(without<trace::Update>(whole), kWindowLost), State::not_triggered);
  auto one = job();
  one.passes = 1;
  EXPECT_EQ(state(without<trace::Dataset>(one.run()), kWindowLost), State::clean);
}

TEST_P(LastWindow, CutAnywhereStaysClean) {
  for (const auto tail : {Passes::Tail::updated, Passes::Tail::carried_over}) {
    const auto whole = job(tail).run();
    for (std::size_t length = 0; length < whole.ranks[0].events.size(); length += 3) {
      EXPECT_NE(state(cut_at(whole, length), kWindowLost), State::found) << length;
    }
  }
}

// The other batches may be another model's, as a critic's are.
TEST_P(LastWindow, IsAdviceWhereNoWindowIsDeclaredAndNoneWhereAnUpdateHasOneBatch) {
  Passes passes(GetParam());
  passes.declared = 0;
  expect_only(passes.run(), kWindowLost, all_ranks(GetParam()), 3, diagnose::Severity::advice);
  passes.declared = 1;
  EXPECT_EQ(state(passes.run(), kWindowLost), State::not_applicable);
  auto unknown = passes.run();
  for (const auto& [step, samples] : each<trace::Samples>(unknown)) samples.ids = {};
  expect_only(unknown, kWindowLost, all_ranks(GetParam()), 3, diagnose::Severity::advice);
}

}  // namespace
}  // namespace lockstep::simulated
