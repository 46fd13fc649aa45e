// Checkpoints of a simulated job: an epoch of four batches on every rank, a save, and a run that goes on
// from it for two more. A test changes what the job does.
#include <gtest/gtest.h>
#include <lockstep/trace/attempts.h>

#include <algorithm>
#include <map>
#include <random>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;
using trace::CheckpointFile;

constexpr std::uint64_t kFile = 77, kOther = 78;
constexpr std::int64_t kBatches = 4;

CheckpointFile file(const std::string& action, int rank, std::uint64_t content,
                    std::uint64_t name = kFile) {
  CheckpointFile event;
  event.action = action;
  event.file = name;
  event.content = content;
  event.local_rank = rank;
  event.device = "cuda:" + std::to_string(rank);
  if (action == "load") {
    event.from = {"cuda:0"};
    event.to = {event.device};
    event.keys = {"fc.weight", "fc.bias"};
  }
  return event;
}

struct CheckpointJob {
  int world_size = 2;
  std::int64_t next_epoch = 1;  // as it counts after it has resumed
  std::int64_t saved_in_batch = kBatches;
  std::int64_t skip = 0;    // batches of that epoch's order
  std::int64_t padded = 0;  // samples that an epoch has twice
  bool with_replacement = false;
  bool tells_ends = true;  // of passes; a program that leaves a last, smaller batch out has none
  bool goes_on = true;     // it updates after it has resumed
  bool all_save = true;    // else rank 0 alone
  std::function<double(std::int64_t step)> lr = [](std::int64_t) { return 0.1; };
  std::function<void(int rank, CheckpointFile&)> load = [](int, CheckpointFile&) {};
  std::function<void(int rank, trace::TrainingState&)> saved = [](int, trace::TrainingState&) {};
  std::function<void(int rank, trace::TrainingState&)> resumed = [](int, trace::TrainingState&) {};

  static trace::TrainingState state(const std::string& moment, int rank) {
    trace::TrainingState state;
    state.moment = moment;
    state.names = {"model", "optimizer", "scheduler", "rng_state", "average"};
    state.hashes = {1, 2, 3, 100 + static_cast<std::uint64_t>(rank), 5};
    const auto device = "cuda:" + std::to_string(rank);
    state.devices = {device, "cpu, " + device, "", "cpu", device};
    return state;
  }

  void train(trace::ParticipantTrace& rank, int r, std::int64_t epoch, std::int64_t from,
             std::int64_t to, std::int64_t* step) const {
    auto ids =
        deal({.samples = 4 * kBatches * world_size - padded, .world_size = world_size}, r, epoch);
    if (with_replacement) {
      std::mt19937_64 generator(static_cast<std::uint64_t>(100 * *step + r));
      for (auto& id : ids) id = static_cast<std::int64_t>(generator() % (ids.size() * 3 / 2));
    }
    record(rank, *step, trace::SetEpoch{epoch});
    record(rank, *step, trace::PassBegin{"train", epoch});
    for (auto b = from; b < to; ++b) {
      record(rank, *step,
             trace::Samples{"train", Ids(ids.begin() + 4 * b, ids.begin() + 4 * (b + 1))});
      record(rank, *step, trace::Update{{lr(*step)}});
      ++*step;
    }
    if (tells_ends && to == kBatches)
      record(rank, *step, trace::PassEnd{"train", epoch, to - from});
  }

  trace::Trace run() const {
    auto trace = empty_trace(world_size);
    for (int r = 0; r < world_size; ++r) {
      auto& rank = trace.ranks[static_cast<std::size_t>(r)];
      std::int64_t step = 0;
      record(rank, -1, trace::Model{{"fc.weight", "fc.bias"}, {{2, 3}, {3}}, {"f", "f"}});
      train(rank, r, 0, 0, saved_in_batch, &step);
      auto before = state("saved", r), after = state("resumed", r);
      saved(r, before), resumed(r, after);
      if (r == 0) {
        record(rank, step, file("save_begin", r, 0));
        record(rank, step, file("save_end", r, 9));
      }
      if (all_save || r == 0) record(rank, step, before);
      auto read = file("load", r, 9);
      load(r, read);
      record(rank, step, read);
      record(rank, step, after);
      if (!goes_on) continue;
      train(rank, r, next_epoch, skip, kBatches, &step);
      train(rank, r, next_epoch + 1, 0, kBatches, &step);
    }
    return trace;
  }
};

class Checkpoints : public testing::TestWithParam<int> {
 protected:
  CheckpointJob job{.world_size = GetParam()};
  std::vector<int> but_rank_zero() const {
    auto ranks = all_ranks(GetParam());
    ranks.erase(ranks.begin());
    return ranks;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Checkpoints, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(Checkpoints, AllOfItIsRight) {
  expect_nothing(job.run());
  for (const char* slug :
       {"load-without-map-location", "optimizer-state-on-wrong-device", "module-prefix",
        "optimizer-state-missing", "scheduler-or-rng-state-missing", "resume-repeats-epoch",
        "resume-mid-epoch-replays", "read-before-written", "concurrent-writers",
        "local-rank-zero-writes", "ema-on-one-rank", "torn-checkpoint"})
    EXPECT_EQ(state(job.run(), slug), State::clean) << slug;
}

TEST_P(Checkpoints, NothingRecordedIsNotClean) {
  const auto files = without<CheckpointFile>(job.run());
  const auto states = without<trace::TrainingState>(job.run());
  for (const char* slug : {"load-without-map-location", "module-prefix", "read-before-written",
                           "concurrent-writers", "local-rank-zero-writes", "torn-checkpoint"})
    EXPECT_EQ(state(files, slug), State::not_triggered) << slug;
  for (const char* slug : {"optimizer-state-on-wrong-device", "optimizer-state-missing",
                           "scheduler-or-rng-state-missing", "resume-repeats-epoch",
                           "resume-mid-epoch-replays", "ema-on-one-rank"})
    EXPECT_EQ(state(states, slug), State::not_triggered) << slug;
}

TEST_P(Checkpoints, LoadToTheSaversDeviceIsNamed) {
  job.load = [](int, CheckpointFile& load) { load.to = load.from; };
  expect_only(job.run(), "load-without-map-location", but_rank_zero(), 4);
  job.load = [](int, CheckpointFile& load) { load.to = {"cpu"}; };
  expect_nothing(job.run());
}

TEST_P(Checkpoints, StateOnAnotherDeviceIsNamed) {
  job.resumed = [](int, trace::TrainingState& state) { state.devices[1] = "cpu"; };
  job.goes_on = false;
  expect_only(job.run(), "optimizer-state-on-wrong-device", all_ranks(GetParam()), 4);
  job.goes_on = true;  // moved before the step
  expect_nothing(job.run());
}

TEST_P(Checkpoints, PrefixOnOneSideIsNamed) {
  job.load = [](int, CheckpointFile& load) { load.keys = {"module.fc.weight", "module.fc.bias"}; };
  expect_nothing(job.run());  // it was taken off: the saved weights came back
  job.resumed = [](int, trace::TrainingState& state) { state.hashes[0] = 99; };
  job.goes_on = false;
  expect_only(job.run(), "module-prefix", all_ranks(GetParam()), 4);
  auto crashed = job.run();
  for (auto& rank : crashed.ranks) rank.events.pop_back();  // it did not come so far
  expect_only(crashed, "module-prefix", all_ranks(GetParam()), 4);
}

TEST_P(Checkpoints, LostStateIsNamed) {
  for (const auto& [part, slug] :
       std::map<std::size_t, std::string>{{1, "optimizer-state-missing"},
                                          {2, "scheduler-or-rng-state-missing"},
                                          {3, "scheduler-or-rng-state-missing"}}) {
    job.resumed = [part = part](int, trace::TrainingState& state) { state.hashes[part] += 1; };
    expect_only(job.run(), slug, all_ranks(GetParam()), 4);
  }
  // Rank 0's generator on all ranks.
  job.resumed = [](int, trace::TrainingState& state) { state.hashes[3] = 100; };
  expect_only(job.run(), "scheduler-or-rng-state-missing", but_rank_zero(), 4);
}

// By the rates that the updates go by, where the program keeps its schedule to itself.
TEST_P(Checkpoints, RatesThatBeginAgainAreNamed) {
  const auto without_schedule = [](int, trace::TrainingState& state) {
    for (auto* of : {&state.names, &state.devices}) of->erase(of->begin() + 2);
    state.hashes.erase(state.hashes.begin() + 2);
  };
  job.saved = job.resumed = without_schedule;
  const auto falls = [](std::int64_t step) { return 0.1 / static_cast<double>(1 + step); };
  job.lr = falls;
  expect_nothing(job.run());
  job.lr = [&](std::int64_t step) { return falls(step % kBatches); };
  expect_only(job.run(), "scheduler-or-rng-state-missing", all_ranks(GetParam()), 4,
              diagnose::Severity::advice);
  // Settings that overrule a schedule of steps.
  job.lr = [](std::int64_t step) { return step < 2 || step >= 4 ? 0.1 : 0.03; };
  expect_only(job.run(), "scheduler-or-rng-state-missing", all_ranks(GetParam()), 4,
              diagnose::Severity::advice);
  // A schedule that counts anew: the first rate is the one that the optimizer's state brings.
  job.lr = [&](std::int64_t step) { return falls(step == kBatches ? step : step % kBatches); };
  expect_only(job.run(), "scheduler-or-rng-state-missing", all_ranks(GetParam()), 4,
              diagnose::Severity::advice);
  job.lr = [](std::int64_t step) { return step < 2 ? 0.1 : 0.03; };
  expect_nothing(job.run());
  job.lr = [](std::int64_t step) { return step % 2 == 0 ? 0.1 : 0.2; };  // by turns
  expect_nothing(job.run());
  // Cycles: a checkpoint at the end of the second one.
  job.lr = [&](std::int64_t step) { return falls(step % 2); };
  expect_nothing(job.run());
  // It trains the model anew, from its weights.
  job.lr = [&](std::int64_t step) { return falls(step % kBatches); };
  job.resumed = [&](int rank, trace::TrainingState& state) {
    without_schedule(rank, state);
    state.hashes[1] = 99;
  };
  EXPECT_EQ(state(job.run(), "scheduler-or-rng-state-missing"), State::clean);
}

TEST_P(Checkpoints, LostStateIsNamedOfRanksThatSaveNothingThemselves) {
  job.all_save = false;
  expect_nothing(job.run());
  for (const auto& [part, slug] : std::map<std::size_t, std::string>{
           {1, "optimizer-state-missing"}, {2, "scheduler-or-rng-state-missing"}}) {
    job.resumed = [part = part](int, trace::TrainingState& state) { state.hashes[part] = 99; };
    expect_only(job.run(), slug, all_ranks(GetParam()), 4);
    // Each rank has a share of its own: of the others' nobody knows what it was.
    job.resumed = [part = part](int rank, trace::TrainingState& state) {
      state.hashes[part] = 99 + static_cast<std::uint64_t>(rank);
    };
    expect_only(job.run(), slug, {0}, 4);
  }
  job.resumed = [](int rank, trace::TrainingState& state) {
    if (rank > 0) state.hashes[1] = 99;
  };
  expect_nothing(job.run());
}

TEST_P(Checkpoints, OptimizersThatHoldNothingOnSomeRanksAreNamed) {
  job.all_save = false;
  job.resumed = [](int rank, trace::TrainingState& state) {
    if (rank != 1) return;
    state.hashes[1] = 99;
    state.devices[1] = "";
  };
  expect_only(job.run(), "optimizer-state-missing", {1}, 4);
  job.saved = [](int, trace::TrainingState& state) { state.devices[1] = ""; };
  job.resumed = job.saved;  // none of them has any
  expect_nothing(job.run());
}

TEST_P(Checkpoints, ARepeatedEpochIsNamedWhereRankZeroAloneSaves) {
  job.all_save = false;
  job.next_epoch = 0;
  expect_only(job.run(), "resume-repeats-epoch", all_ranks(GetParam()), 4);
  // A batch sampler of the program's own may count its passes; where nobody does, each is 0.
  auto counted = without<trace::SetEpoch>(job.run());
  EXPECT_EQ(state(counted, "resume-repeats-epoch"), State::found);
  for (auto [step, pass] : each<trace::PassBegin>(counted)) pass.epoch = 0;
  EXPECT_EQ(state(counted, "resume-repeats-epoch"), State::not_triggered);
  job.saved_in_batch = 2;
  expect_only(job.run(), "resume-mid-epoch-replays", all_ranks(GetParam()), 2);
  auto own_at_the_end =
      job.run();  // each rank keeps its own weights, too, and nobody goes on from those
  for (auto& rank : own_at_the_end.ranks)
    record(rank, 100, CheckpointJob::state("saved", rank.participant.rank));
  EXPECT_EQ(state(own_at_the_end, "resume-mid-epoch-replays"), State::found);
  job.skip = 2;
  expect_nothing(job.run());
}

TEST_P(Checkpoints, AveragesThatDifferAreNamed) {
  job.saved = [](int rank, trace::TrainingState& state) { state.hashes[4] = rank == 0 ? 5 : 6; };
  const auto trace = job.run();
  EXPECT_EQ(state(trace, "ema-on-one-rank"), State::found);
  const auto only_rank_zero = [](int rank, trace::TrainingState& state) {
    if (rank == 0) return;
    state.names.pop_back(), state.hashes.pop_back(), state.devices.pop_back();
  };
  job.saved = job.resumed = only_rank_zero;
  expect_nothing(job.run());
}

TEST_P(Checkpoints, EpochOnceMoreIsNamed) {
  job.next_epoch = 0;
  expect_only(job.run(), "resume-repeats-epoch", all_ranks(GetParam()), 4);
  job.tells_ends = false;
  expect_only(job.run(), "resume-repeats-epoch", all_ranks(GetParam()), 4);
}

// A job that tells no state is known to have resumed with its first update.
TEST_P(Checkpoints, EpochOnceMoreIsNamedWhereTheStateIsKnownAfterItBegan) {
  job.next_epoch = 0;
  auto trace = job.run();
  for (auto& rank : trace.ranks) {
    auto& events = rank.events;
    const auto resumed = std::find_if(events.begin(), events.end(), [](const auto& event) {
      const auto* state = event.template as<trace::TrainingState>();
      return state != nullptr && state->moment == "resumed";
    });
    const auto update = std::find_if(resumed, events.end(), [](const auto& event) {
      return event.template is<trace::Update>();
    });
    std::rotate(resumed, resumed + 1, update);
  }
  expect_only(trace, "resume-repeats-epoch", all_ranks(GetParam()), 4);
}

TEST_P(Checkpoints, AnEpochThatWasOverLongAgoIsNamed) {
  job.next_epoch = 0;
  auto trace = job.run();
  for (auto& rank : trace.ranks) {
    trace::ParticipantTrace second = rank;
    second.events.clear();
    std::int64_t step = 4;
    job.train(second, rank.participant.rank, 1, 0, 4, &step);
    const auto save = std::find_if(rank.events.begin(), rank.events.end(), [](const auto& event) {
      return event.template is<trace::CheckpointFile>() ||
             event.template is<trace::TrainingState>();
    });
    rank.events.insert(save, second.events.begin(), second.events.end());
  }
  EXPECT_EQ(state(trace, "resume-repeats-epoch"), State::found);
  EXPECT_NE(evidence(trace).find("epoch 0 was over"), std::string::npos) << evidence(trace);
}

TEST_P(Checkpoints, BrokenOffEpochThatStartsOverIsNamed) {
  job.saved_in_batch = 2;
  job.next_epoch = 0;
  expect_only(job.run(), "resume-mid-epoch-replays", all_ranks(GetParam()), 2);
  job.tells_ends = false;
  expect_only(job.run(), "resume-mid-epoch-replays", all_ranks(GetParam()), 2);
  job.skip = 2;
  expect_nothing(job.run());
  job.skip = 0, job.next_epoch = 1;  // the rest is given up
  expect_nothing(job.run());
}

// The sampler repeats the first samples, which came before the checkpoint, at its end.
TEST_P(Checkpoints, BrokenOffEpochThatGoesOnToItsPaddingIsRight) {
  job.saved_in_batch = 2;
  job.next_epoch = 0;
  job.skip = 2;
  job.padded = GetParam() - 1;
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "resume-mid-epoch-replays"), State::clean);
}

TEST_P(Checkpoints, SamplesDrawnWithReplacementSayNothingOfWhatIsReplayed) {
  job.saved_in_batch = 2;
  job.next_epoch = 0;
  job.skip = 2;
  job.with_replacement = true;
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "resume-mid-epoch-replays"), State::not_triggered);
}

// All ranks draw the same, which is another pitfall.
TEST_P(Checkpoints, BrokenOffEpochOfUnshardedDataThatStartsOverIsNamed) {
  job.saved_in_batch = 2;
  job.next_epoch = 0;
  auto trace = job.run();
  for (auto& rank : trace.ranks)
    for (std::size_t i = 0; i < rank.events.size(); ++i)
      if (rank.events[i].is<trace::Samples>() && &rank != &trace.ranks[0])
        for (const auto& event : trace.ranks[0].events)
          if (event.is<trace::Samples>() && event.step == rank.events[i].step)
            rank.events[i].payload = event.payload;
  EXPECT_EQ(state(trace, "resume-mid-epoch-replays"), State::found);
}

TEST_P(Checkpoints, OtherBytesAreNamed) {
  job.load = [](int rank, CheckpointFile& load) { load.content = rank == 0 ? 9 : 8; };
  expect_only(job.run(), "read-before-written", but_rank_zero(), 4);
  job.load = [](int rank, CheckpointFile& load) {  // an older file, of another name
    if (rank > 0) load.content = 8, load.file = kOther;
  };
  expect_nothing(job.run());
}

// The first ones come from an older file, before rank 0 saves.
TEST_P(Checkpoints, LoadBeforeTheSaveIsRight) {
  auto trace = job.run();
  for (auto& rank : trace.ranks) record(rank, 50, file("load", rank.participant.rank, 9));
  record(trace.ranks[0], 50, file("save_begin", 0, 0));
  record(trace.ranks[0], 50, file("save_end", 0, 10));
  expect_nothing(trace);
}

TEST_P(Checkpoints, SeveralWritersAreNamed) {
  auto trace = job.run(), nodes = job.run(), folders = job.run();
  for (int r = 0; r < GetParam(); ++r) {
    const auto place = static_cast<std::size_t>(r);
    record(trace.ranks[place], 20, file("save_begin", r, 0));
    record(nodes.ranks[place], 20, file("save_begin", 0, 0));
    record(folders.ranks[place], 20, file("save_begin", 0, 0, 200 + place));
  }
  expect_only(trace, "concurrent-writers", all_ranks(GetParam()), 20);
  expect_only(nodes, "local-rank-zero-writes", all_ranks(GetParam()), 20);
  expect_nothing(folders);
}

// Each node's own disk: one path, and as many files as nodes.
TEST_P(Checkpoints, WritersThatEachReadTheirOwnBytesBackHaveFilesOfTheirOwn) {
  const auto run = [&](bool meet, const std::function<std::uint64_t(int rank)>& written,
                       const std::function<std::uint64_t(int rank)>& read) {
    auto trace = job.run();
    for (auto& rank : trace.ranks) {
      const int r = rank.participant.rank;
      const auto of_node = [&](const std::string& action, std::uint64_t content) {
        auto event = file(action, r, content);
        event.local_rank = 0;
        record(rank, 20, event);
      };
      of_node("save_begin", 0);
      of_node("save_end", written(r));
      if (meet)
        record(rank, 20, trace::Collective{.sequence = 7, .group = "world", .op = "barrier"});
      of_node("load", read(r));
    }
    return trace;
  };
  const auto own = [](int rank) { return 300 + static_cast<std::uint64_t>(rank); };
  const auto same = [](int) { return std::uint64_t{300}; };
  EXPECT_EQ(state(run(true, own, own), "local-rank-zero-writes"), State::clean);
  EXPECT_EQ(state(run(true, own, same), "local-rank-zero-writes"), State::found);
  // Nothing tells: each may have read before another wrote, or they are the same bytes.
  EXPECT_EQ(state(run(false, own, own), "local-rank-zero-writes"), State::found);
  EXPECT_EQ(state(run(true, same, same), "local-rank-zero-writes"), State::found);
}

TEST_P(Checkpoints, SaveThatDiesIsNamedWhereNothingIsLeft) {
  auto trace = job.run();
  record(trace.ranks[0], 20, file("save_begin", 0, 0));
  expect_nothing(trace);  // nobody looked
  auto whole = trace;
  for (auto& rank : whole.ranks) record(rank, 20, file("load", rank.participant.rank, 9));
  expect_nothing(whole);
  for (auto& rank : trace.ranks) {
    auto load = file("load", rank.participant.rank, 8);
    load.accepted = false;
    record(rank, 20, load);
  }
  expect_only(trace, "torn-checkpoint", {0}, 20);
  for (auto& rank : trace.ranks)  // an older one of another name
    record(rank, 20, file("load", rank.participant.rank, 7, kOther));
  expect_nothing(trace);
}

// As two processes leave it that were started one after the other: what was recorded before the load, and after.
std::vector<trace::Trace> as_attempts(const trace::Trace& whole) {
  std::vector<trace::Trace> attempts(2, whole);
  for (std::size_t r = 0; r < whole.ranks.size(); ++r) {
    auto& first = attempts[0].ranks[r].events;
    auto& second = attempts[1].ranks[r].events;
    const auto load = std::find_if(first.begin(), first.end(), [](const trace::Event& event) {
      const auto* of = event.as<CheckpointFile>();
      return of && of->action == "load";
    });
    second.erase(second.begin(), second.begin() + (load - first.begin()));
    first.erase(load, first.end());
    const auto steps = second.front().step;
    for (auto& event : second) event.step -= steps;  // counts anew
  }
  return attempts;
}

TEST_P(Checkpoints, OfAJobThatWasStartedAgainAreJudgedOverItsAttempts) {
  const auto whole = [](const CheckpointJob& job) {
    return trace::concatenate(as_attempts(job.run()));
  };
  expect_nothing(whole(job));
  EXPECT_EQ(state(whole(job), "resume-repeats-epoch"), State::clean);
  auto again = job;
  again.next_epoch = 0;
  expect_only(whole(again), "resume-repeats-epoch", all_ranks(GetParam()), -2);
  auto lost = job;
  lost.resumed = [](int, trace::TrainingState& state) { state.hashes[1] = 99; };
  expect_only(whole(lost), "optimizer-state-missing", all_ranks(GetParam()), -2);
  for (const auto* slug : {"optimizer-state-missing", "resume-repeats-epoch"})
    EXPECT_EQ(state(as_attempts(lost.run())[1], slug), State::not_triggered) << "alone: " << slug;
}

}  // namespace
}  // namespace lockstep::simulated
