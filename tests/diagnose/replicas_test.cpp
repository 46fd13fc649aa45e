#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/trace/attempts.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

class Replicas : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Replicas, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(Replicas, WithoutABroadcastAreNamedBeforeTheFirstStep) {
  Job job(GetParam());
  job.equal_start = false;
  expect_only(job.run(), "no-initial-broadcast", all_ranks(GetParam()), -1);
}

TEST(ReplicasOfFour, OneThatStartsApartIsTheOneNamed) {
  auto trace = Job(4).run();
  for (auto [step, parameters] : each<trace::Parameters>(trace.ranks[2]))
    parameters.values = summarize(draw_values(5, 5, step));
  expect_only(trace, "no-initial-broadcast", {2}, -1);
}

// As of a teacher that one rank has trained before.
TEST_P(Replicas, OfAnotherModelAreNotCompared) {
  auto trace = Job(GetParam()).run();
  for (auto [step, parameters] : each<trace::Parameters>(trace.ranks[0]))
    if (step < 0) parameters.values.resize(1);
  expect_nothing(trace);
}

TEST_P(Replicas, NeedTheirStartRecorded) {
  Job job(GetParam());
  job.has_engine = false;
  const auto trace = without<trace::Parameters>(job.run());
  EXPECT_EQ(state(trace, "no-initial-broadcast"), State::not_triggered);
  EXPECT_EQ(state(trace, "no-gradient-sync"), State::not_triggered);
  EXPECT_EQ(state(trace, "replicas-diverged"), State::not_triggered);
  EXPECT_EQ(state(without<trace::Model>(trace), "parameters-differ-across-ranks"),
            State::not_triggered);
}

TEST_P(Replicas, ThatNobodyReducesAreNamedAtTheFirstUpdate) {
  Job job(GetParam());
  job.reduce = false;
  job.has_engine = false;
  expect_only(job.run(), "no-gradient-sync", all_ranks(GetParam()), 0);
}

TEST_P(Replicas, OfAnEngineThatIsToldNotToReduceAreNotSynchronised) {
  Job job(GetParam());
  job.reduce = false;
  auto trace = job.run();
  for (auto& rank : trace.ranks) {
    rank.events.insert(rank.events.begin(), {0, -1, trace::SyncGradients{false}});
    record(rank, 0, trace::SyncGradients{true});  // when all is over
  }
  expect_only(trace, "no-gradient-sync", all_ranks(GetParam()), 0);
  EXPECT_NE(diagnose::diagnose(trace).findings[0].evidence.find("told not to reduce"),
            std::string::npos);
}

TEST_P(Replicas, ThatAnEngineHoldsAndNobodyReducesAreTheWrappers) {
  Job job(GetParam());
  job.reduce = false;
  expect_only(job.run(), "forward-bypasses-wrapper", all_ranks(GetParam()), 0);
  EXPECT_EQ(state(job.run(), "no-gradient-sync"), State::not_applicable);
}

// Adds one collective a tensor to every rank at those steps.
trace::Trace with_collectives(trace::Trace trace, const std::string& op,
                              const std::vector<std::int64_t>& sizes, std::int64_t first,
                              std::int64_t every) {
  for (auto& rank : trace.ranks) {
    std::int64_t sequence = 0;
    for (std::int64_t step = first; step < 12; step += every)
      for (const auto size : sizes)
        record(rank, step, trace::Collective{0, ++sequence, op, op, "sum", -1, "float", {size}});
  }
  return trace;
}

// As in a cross-validation.
TEST_P(Replicas, OfAnEngineThatLaterTakesOverAnotherModelAreTheWrappers) {
  Job job(GetParam());
  job.reduce = false;
  auto trace = with_collectives(job.run(), "broadcast", {9}, 8, 8);
  EXPECT_EQ(state(trace, "forward-bypasses-wrapper"), State::not_triggered);
  for (auto& rank : trace.ranks) record(rank, 8, *rank.all<trace::Engine>().front().event);
  expect_only(trace, "forward-bypasses-wrapper", all_ranks(GetParam()), 0);
}

TEST_P(Replicas, ThatNeverWereEqualHaveThatFaultFirst) {
  Job job(GetParam());
  job.reduce = false;
  job.has_engine = false;
  job.equal_start = false;
  expect_only(job.run(), "no-initial-broadcast", all_ranks(GetParam()), -1);
}

// Every rank goes on from a checkpoint after so many updates; or takes other weights.
trace::Trace resumed(int world_size, std::int64_t step,
                     const std::function<std::uint64_t(int rank)>& model,
                     const std::string& moment = "resumed") {
  auto trace = Job(world_size).run();
  for (auto& rank : trace.ranks)
    record(rank, step,
           trace::TrainingState{moment, {"model"}, {model(rank.participant.rank)}, {"cpu"}});
  return trace;
}

TEST_P(Replicas, ThatGoOnFromACheckpointWithOtherWeightsAreNamed) {
  expect_only(resumed(GetParam(), 5, [](int rank) { return rank == 1 ? 8U : 7U; }),
              "no-initial-broadcast", odd_one_out(GetParam(), 1), 5);
  expect_nothing(resumed(GetParam(), 5, [](int) { return 7U; }));
  // A broadcast may still follow where the process has just begun; what it started with was recorded.
  expect_nothing(resumed(GetParam(), 0, [](int rank) { return rank == 1 ? 8U : 7U; }));
}

// Such as the weights that were best on its own part of the validation.
TEST_P(Replicas, ThatEndWithOtherWeightsAreAdvice) {
  const auto loaded = [&](bool same) {
    return resumed(
        GetParam(), 6, [&](int rank) { return rank == 1 && !same ? 8U : 7U; }, "loaded");
  };
  expect_only(loaded(false), "replicas-diverged", odd_one_out(GetParam(), 1), 6,
              diagnose::Severity::advice);
  expect_nothing(loaded(true));
  auto alone = loaded(false);
  std::erase_if(alone.ranks.back().events,
                [](const auto& event) { return event.template is<trace::TrainingState>(); });
  expect_nothing(alone);
}

TEST_P(Replicas, WhoseParametersAreAveragedAreRight) {
  Job job(GetParam());
  job.reduce = false;
  job.has_engine = false;
  job.average_parameters = true;
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "no-gradient-sync"), State::clean);
}

TEST_P(Replicas, AveragedNowAndThenAreRight) {
  Job job(GetParam());
  job.reduce = false;
  job.has_engine = false;
  auto trace = job.run();
  for (auto [step, parameters] : each<trace::Parameters>(trace))
    if (step == 2) parameters.values = summarize(draw_values(5, 5, 5));
  expect_nothing(trace);
}

Job local_steps(int world_size) {
  Job job(world_size);
  job.reduce = false;
  job.has_engine = false;
  return job;
}

// As of a run that goes on: at its end the last steps would have been averaged.
trace::Trace not_ended(trace::Trace trace) {
  for (auto& rank : trace.ranks) rank.closed = false;
  return trace;
}

TEST_P(Replicas, AveragedWhereNobodyLooksAreRight) {
  const auto apart = not_ended(local_steps(GetParam()).run());
  for (const auto& trace :
       {with_collectives(apart, "allreduce", {9}, 8, 8),     // every eighth update
        with_collectives(apart, "allreduce", {6, 3}, 1, 1),  // each, behind the record
        with_collectives(apart, "allgather", {6, 3}, 8, 8),  // or by any other way
        with_collectives(without<trace::Model>(apart), "allreduce", {9}, 8, 8)}) {
    expect_nothing(trace);
    EXPECT_EQ(state(trace, "no-gradient-sync"), State::not_triggered);
    EXPECT_EQ(state(trace, "replicas-diverged"), State::not_triggered);
  }
}

// Every rank tells, right before each update but the first, what has become of the last one's parameters.
trace::Trace looked_at_before_updates(trace::Trace trace, const trace::BeforeUpdate& found) {
  for (auto& rank : trace.ranks)
    for (auto event = rank.events.begin(); event != rank.events.end(); ++event)
      if (event->step >= 1 && event->is<trace::ReducedGradients>())
        event = rank.events.insert(event, {0, event->step, found}) + 1;
  return trace;
}

// A collective as large as the parameters after each update, in front of the next one's gradients.
trace::Trace with_one_between_updates(trace::Trace trace) {
  for (auto& rank : trace.ranks) {
    std::int64_t sequence = 0;
    for (auto event = rank.events.begin(); event != rank.events.end(); ++event)
      if (event->is<trace::Parameters>() && event->step >= 0)
        event = rank.events.insert(
            event + 1,
            {0, event->step + 1,
             trace::Collective{0, ++sequence, "0", "allreduce", "sum", -1, "float", {9}}});
  }
  return trace;
}

TEST_P(Replicas, ThatTheRunEndsWithApartAreAdvice) {
  auto job = local_steps(GetParam());
  job.recorded_steps = 100;
  const auto averaged = with_one_between_updates(job.run());
  expect_nothing(averaged);
  auto apart = averaged;  // the last averaging is left out
  const auto last = apart.ranks[0].all<trace::Parameters>().back().step;
  for (auto& rank : apart.ranks)
    std::erase_if(rank.events, [&](const trace::Event& event) {
      return event.is<trace::Collective>() && event.step > last;
    });
  expect_only(apart, "replicas-diverged", all_ranks(GetParam()), static_cast<int>(last),
              diagnose::Severity::advice);
  EXPECT_NE(evidence(apart).find("the run ends with replicas that differ"), std::string::npos)
      << evidence(apart);
  expect_nothing(not_ended(apart));
}

TEST_P(Replicas, ThatCollectivesLeftAsTheyWereAreNotAveraged) {
  const auto trace = with_one_between_updates(local_steps(GetParam()).run());
  EXPECT_EQ(state(trace, "no-gradient-sync"), State::not_triggered);
  expect_only(looked_at_before_updates(trace, {.changed = false, .values = {}}), "no-gradient-sync",
              all_ranks(GetParam()), 0);
}

TEST_P(Replicas, ThatAreEqualBeforeTheNextUpdateAreAveraged) {
  const auto trace = with_one_between_updates(local_steps(GetParam()).run());
  const auto averaged = summarize(draw_values(5, 5, 5));
  expect_nothing(looked_at_before_updates(trace, {.changed = true, .values = averaged}));
  EXPECT_EQ(state(looked_at_before_updates(trace, {.changed = true, .values = averaged}),
                  "no-gradient-sync"),
            State::clean);
}

// A sharded optimizer by hand: each rank's optimizer has other parameters than the others'.
TEST_P(Replicas, OfWhichEachRankUpdatesAndSendsAPartAreOneModel) {
  Job job(GetParam());
  job.has_engine = false;
  job.odd_shape_on = {1};
  const auto apart = job.run();
  EXPECT_EQ(state(apart, "parameters-differ-across-ranks"), State::found);
  auto sent = apart;
  for (int rank = 0; rank < GetParam(); ++rank) {
    auto& events = sent.ranks[static_cast<std::size_t>(rank)];
    for (const auto& at : apart.ranks[static_cast<std::size_t>(rank)].all<trace::Update>())
      for (int root = 0; root < GetParam(); ++root)
        record(events, at.step + 1, call(1 + at.step, "0", "broadcast", root, 12));
  }
  EXPECT_EQ(state(sent, "parameters-differ-across-ranks"), State::not_applicable);
}

TEST_P(Replicas, OfWhichATensorIsLeftOutOfTheAveragesAreNamed) {
  const auto apart = with_one_between_updates(local_steps(GetParam()).run());
  const auto averaged = summarize(draw_values(5, 5, 5));
  auto trace = looked_at_before_updates(apart, {.changed = true, .values = averaged});
  for (auto& rank : trace.ranks) {
    const auto* last = static_cast<const trace::Parameters*>(nullptr);
    for (auto& event : rank.events) {
      if (const auto* parameters = event.as<trace::Parameters>()) last = parameters;
      if (event.is<trace::BeforeUpdate>())
        event.payload =
            trace::BeforeUpdate{.changed = true, .values = {averaged[0], last->values[1]}};
    }
  }
  expect_only(trace, "replicas-diverged", all_ranks(GetParam()), 0);
  EXPECT_NE(evidence(trace).find("stays apart"), std::string::npos) << evidence(trace);
}

// The gradients were reduced until then, and nothing as large came afterwards.
TEST_P(Replicas, ThatNothingBringsTogetherAgainAreApart) {
  Job job(GetParam());
  job.has_engine = false;
  auto trace = with_collectives(job.run(), "allreduce", {9}, 0, 1);
  job.reduce = false;
  const auto later = job.run();
  for (std::size_t r = 0; r < trace.ranks.size(); ++r) {
    for (std::size_t e = 0; e < later.ranks[r].events.size(); ++e)
      if (trace.ranks[r].events[e].step >= 2) trace.ranks[r].events[e] = later.ranks[r].events[e];
    std::erase_if(trace.ranks[r].events, [](const trace::Event& event) {
      return event.is<trace::Collective>() && event.step > 2;
    });
  }
  expect_only(trace, "replicas-diverged", all_ranks(GetParam()), 2);
}

// The averaging is of an update whose parameters were recorded after further ones, and whose gradients were not.
TEST_P(Replicas, AveragedLongBeforeTheyAreRecordedApartAreRight) {
  auto trace = not_ended(with_collectives(local_steps(GetParam()).run(), "allreduce", {9}, 3, 4));
  for (auto& rank : trace.ranks)
    std::erase_if(rank.events, [](const trace::Event& event) {
      const bool values = event.is<trace::LocalGradients>() ||
                          event.is<trace::ReducedGradients>() || event.is<trace::Parameters>();
      return values && event.step > 2 && !(event.is<trace::Parameters>() && event.step == 11);
    });
  expect_nothing(trace);
}

TEST_P(Replicas, AveragedInLargePiecesAreRight) {
  auto trace = not_ended(local_steps(GetParam()).run());
  for (auto [step, model] : each<trace::Model>(trace)) model.shapes = {{500}, {500}};
  expect_nothing(with_collectives(trace, "allreduce", {250}, 2, 2));
}

TEST_P(Replicas, AveragedUnderAnEngineThatRestsAreRight) {
  Job job(GetParam());
  job.reduce = false;
  const auto trace = not_ended(with_collectives(job.run(), "allreduce", {9}, 8, 8));
  expect_nothing(trace);
  EXPECT_EQ(state(trace, "forward-bypasses-wrapper"), State::not_triggered);
}

// Gradients are reduced at first, and later replaced by averaging.
TEST_P(Replicas, AveragedAfterAWarmUpAreRight) {
  for (const bool has_engine : {true, false}) {
    Job job(GetParam());
    job.has_engine = has_engine;
    auto trace = job.run();
    job.reduce = false;
    const auto later = job.run();
    for (std::size_t r = 0; r < trace.ranks.size(); ++r)
      for (std::size_t e = 0; e < trace.ranks[r].events.size(); ++e)
        if (trace.ranks[r].events[e].step >= 2) trace.ranks[r].events[e] = later.ranks[r].events[e];
    expect_nothing(not_ended(with_collectives(trace, "allreduce", {6, 3}, 0, 1)));
  }
}

TEST_P(Replicas, ThatShareMetricsOnlyAreStillNamed) {
  const auto metrics = with_collectives(local_steps(GetParam()).run(), "allreduce", {2, 1}, 0, 1);
  expect_only(metrics, "no-gradient-sync", all_ranks(GetParam()), 0);
  // A broadcast of the initial parameters averages nothing later.
  expect_only(with_collectives(metrics, "broadcast", {6, 3}, -1, 100), "no-gradient-sync",
              all_ranks(GetParam()), 0);
  Job job(GetParam());
  job.reduce = false;
  expect_only(with_collectives(job.run(), "allreduce", {2, 1}, 0, 1), "forward-bypasses-wrapper",
              all_ranks(GetParam()), 0);
}

TEST_P(Replicas, ApartThoughGradientsAreReducedAreAFinding) {
  for (const bool has_engine : {true, false}) {
    Job job(GetParam());
    job.has_engine = has_engine;
    auto trace = with_collectives(job.run(), "allreduce", {6, 3}, 0, 1);
    for (auto [step, parameters] : each<trace::Parameters>(trace.ranks[1]))
      if (step >= 1) parameters.values[1] = summarize(Values{1, 2, 3});
    // One gradient on all ranks makes them replicas, whoever reduces it; so it is the update that differs.
    expect_only(trace, "update-differs", odd_one_out(GetParam(), 1), 1);
  }
}

TEST_P(Replicas, OfWhichOneIsNotFiniteAreApart) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  auto trace = Job(GetParam()).run();
  const auto overflow = [&](trace::ParticipantTrace& rank) {
    for (auto [step, parameters] : each<trace::Parameters>(rank))
      if (step >= 2)
        parameters.values[0] = {77, kInfinity, {kInfinity, kInfinity, kInfinity, -kInfinity}};
  };
  overflow(trace.ranks[1]);
  expect_only(trace, "update-differs", odd_one_out(GetParam(), 1), 2);
  for (auto& rank : trace.ranks) overflow(rank);
  expect_nothing(trace);
}

TEST_P(Replicas, ApartForNoNamedReasonAreAGenericFinding) {
  auto trace = without<trace::Update>(Job(GetParam()).run());
  for (auto [step, parameters] : each<trace::Parameters>(trace.ranks[1]))
    if (step >= 1) parameters.values[1] = summarize(Values{1, 2, 3});
  expect_only(trace, "replicas-diverged", odd_one_out(GetParam(), 1), 1);
  const auto finding = diagnose::diagnose(trace).findings.front();
  EXPECT_EQ(finding.after, 0);
  EXPECT_EQ(finding.evidence.find("it began between"),
            std::string::npos);  // there is no step between
}

// The next model of the job begins with equal replicas: nobody has brought the first one's together.
TEST_P(Replicas, ApartToTheEndOfTheirModelAreNamed) {
  auto trace = without<trace::Update>(Job(GetParam()).run());
  for (auto [step, parameters] : each<trace::Parameters>(trace.ranks[1]))
    if (step >= 1 && step < 3) parameters.values[1] = summarize(Values{1, 2, 3});
  EXPECT_EQ(state(trace, "replicas-diverged"), State::clean);
  for (auto& rank : trace.ranks) {
    const auto model = *rank.all<trace::Model>().front().event;
    const auto next = std::find_if(rank.events.begin(), rank.events.end(),
                                   [](const auto& event) { return event.step == 3; });
    ASSERT_NE(next, rank.events.end());
    trace::Event begins = *next;
    begins.payload = model;
    rank.events.insert(next, begins);
  }
  EXPECT_EQ(state(trace, "replicas-diverged"), State::found);
}

// Before the job each rank trains a probe on its own samples: two updates, and `between` at the first one.
trace::Trace after_probes(trace::Trace trace, const std::vector<trace::SharedPayload>& between = {},
                          bool is_another = true) {
  for (auto& rank : trace.ranks) {
    auto job = std::exchange(rank.events, {});
    record(rank, -1, trace::Model{{"w"}, {{2}}, {"float"}});
    for (const std::int64_t step : {0, 1}) {
      if (step == 0)
        for (const auto& event : between) record(rank, step, event);
      record(rank, step, trace::Update{{0.1}});
      record(rank, step, trace::Parameters{{summarize(Values{1.0, 2.0 + rank.participant.rank})}});
    }
    if (is_another) record(rank, 2, trace::AnotherModel{});
    for (auto& event : job) {
      event.step = std::max<std::int64_t>(event.step, 0) + 2;
      if (!event.is<trace::Parameters>() || event.step > 2) rank.events.push_back(event);
    }
  }
  return trace::concatenate({trace});
}

TEST_P(Replicas, OfModelsThatEachRankTrainsForItselfBeforeTheJobAreRight) {
  const auto trace = Job(GetParam()).run();
  expect_nothing(after_probes(trace));
  expect_nothing(
      after_probes(trace, {trace::Collective{0, 1, "0", "allreduce", "sum", -1, "float", {1}},
                           trace::Collective{0, 2, "0", "broadcast", "", 0, "uint8", {99}}}));
  EXPECT_EQ(state(after_probes(trace, {}, /*is_another=*/false), "replicas-diverged"),
            State::found);
  // One that the ranks share, by an engine or by hand.
  for (const trace::SharedPayload& shares :
       {trace::SharedPayload(trace::Engine{"distributed_data_parallel", 1}),
        trace::SharedPayload(trace::Collective{0, 1, "0", "broadcast", "", 0, "float", {2}})})
    EXPECT_EQ(state(after_probes(trace, {shares}), "replicas-diverged"), State::found);
}

// What is said while a job runs is not taken back: it may train a probe before its own model.
TEST_P(Replicas, ThatShareNothingAreNamedOnceTheRunHasEnded) {
  const auto apart = local_steps(GetParam()).run();
  expect_only(apart, "no-gradient-sync", all_ranks(GetParam()), 0);
  expect_nothing(not_ended(apart));
  expect_nothing(not_ended(without<trace::LocalGradients>(apart)));
  auto one_ended = not_ended(apart);
  one_ended.ranks.back().closed = true;
  expect_only(one_ended, "no-gradient-sync", all_ranks(GetParam()), 0);
  // As by a broadcast of its first parameters.
  auto shared = not_ended(apart);
  for (auto& rank : shared.ranks)
    rank.events.insert(rank.events.begin(), {0, -1, call(1, "0", "broadcast", 0, 9)});
  expect_only(shared, "no-gradient-sync", all_ranks(GetParam()), 0);
}

TEST_P(Replicas, OfTheJobsModelAreNamedWhateverRanksTrainedBefore) {
  Job job(GetParam());
  job.reduce = false;
  EXPECT_EQ(state(after_probes(job.run()), "replicas-diverged"), State::found);
  job.has_engine = false;  // of the later model, too, no rank shares anything: nothing is left out
  EXPECT_EQ(state(after_probes(job.run()), "replicas-diverged"), State::found);
}

TEST_P(Replicas, ApartBetweenRecordedStepsAreNamedWithBoth) {
  auto trace = without<trace::Update>(Job(GetParam()).run());
  for (auto& rank : trace.ranks)
    std::erase_if(rank.events, [](const trace::Event& event) {
      return event.is<trace::Parameters>() && event.step >= 1 && event.step < 3;
    });
  for (auto [step, parameters] : each<trace::Parameters>(trace.ranks[1]))
    if (step >= 3) parameters.values[1] = summarize(Values{1, 2, 3});
  expect_only(trace, "replicas-diverged", odd_one_out(GetParam(), 1), 3);
  const auto finding = diagnose::diagnose(trace).findings.front();
  EXPECT_EQ(finding.after, 0);
  EXPECT_THAT(finding.evidence, ::testing::EndsWith("; it began between steps 0 and 3"));
}

TEST_P(Replicas, OfAnotherShapeAreNamedAlone) {
  Job job(GetParam());
  job.odd_shape_on = {GetParam() - 1};
  job.equal_start = false;
  expect_only(job.run(), "parameters-differ-across-ranks", odd_one_out(GetParam(), GetParam() - 1),
              -1);
}

TEST_P(Replicas, WithOtherNamesAreRight) {
  auto trace = Job(GetParam()).run();
  for (auto [step, model] : each<trace::Model>(trace.ranks[1]))
    model.names = {"module.weight", "module.bias"};
  expect_nothing(trace);
}

TEST_P(Replicas, RoundedOtherwiseAreRight) {
  auto trace = Job(GetParam()).run();
  for (auto [step, parameters] : each<trace::Parameters>(trace.ranks[1]))
    for (auto& value : parameters.values) {
      value.hash += 1;
      value.norm *= 1 + 6e-8;
    }
  expect_nothing(trace);
}

TEST(ReplicasOfOne, CannotDiffer) {
  for (const auto* slug : {"no-initial-broadcast", "no-gradient-sync", "forward-bypasses-wrapper",
                           "parameters-differ-across-ranks", "replicas-diverged"})
    EXPECT_EQ(state(Job(1).run(), slug), State::not_applicable) << slug;
}

}  // namespace
}  // namespace lockstep::simulated
