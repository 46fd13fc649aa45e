// Several processes, each rank 0 of 1 at the same time.
#include <gtest/gtest.h>

#include "expect.h"
#include "job.h"

namespace lockstep::simulated {
namespace {

template <class T>
T* first(trace::ParticipantTrace& rank) {
  for (auto& event : rank.events)
    if (auto* payload = event.change<T>()) return payload;
  return nullptr;
}

trace::ParticipantTrace process(const Job& job, double rate = 0.1) {
  auto trace = job.run();
  for (auto [step, update] : each<trace::Update>(trace.ranks.front())) update.lr = {rate};
  return std::move(trace.ranks.front());
}

// The processes as their folder is read: the first in `ranks`, the others beside it.
trace::Trace beside_each_other(const std::vector<trace::ParticipantTrace>& processes) {
  trace::Trace trace{.world_size = 1, .ranks = {processes.front()}};
  trace.alone.assign(processes.begin() + 1, processes.end());
  return trace;
}

TEST(Alone, ASingleProcessIsRight) {
  expect_nothing(Job(1).run());
}

TEST(Alone, ProcessesThatTrainTheSameAreNamed) {
  for (const std::size_t processes : {2, 3, 8}) {
    const auto trace = beside_each_other(std::vector(processes, process(Job(1))));
    expect_only(trace, "silent-single-process", {0}, 0);
    const auto found = diagnose::diagnose(trace).findings.at(0).evidence;
    EXPECT_EQ(found.find(std::to_string(processes) + " processes"), 0u) << found;
  }
}

TEST(Alone, AProcessThatIsBehindTrainsTheSame) {
  Job behind(1);
  behind.passes = 1;
  expect_only(beside_each_other({process(Job(1)), process(behind)}), "silent-single-process", {0},
              0);
}

TEST(Alone, ASweepIsRight) {
  Job other_batch(1), other_data(1);
  other_batch.batch *= 2;
  other_data.samples -= 1;
  for (const auto& other : {process(Job(1), 0.2), process(other_batch), process(other_data)})
    expect_nothing(beside_each_other({process(Job(1)), other}));
}

TEST(Alone, OfASweepOnlyThoseThatAreTheSameAreCounted) {
  const auto trace = beside_each_other({process(Job(1)), process(Job(1), 0.2), process(Job(1))});
  expect_only(trace, "silent-single-process", {0}, 0);
  EXPECT_EQ(diagnose::diagnose(trace).findings.at(0).evidence.find("2 processes"), 0u);
}

TEST(Alone, AnotherFirstLossIsAnotherModel) {
  auto trace = beside_each_other({process(Job(1)), process(Job(1))});
  for (auto [step, loss] : each<trace::Loss>(trace.alone.front())) loss.backward_value *= 1.001;
  expect_nothing(trace);
}

TEST(Alone, OtherParametersAtTheStartAreAnotherModel) {
  auto trace = without<trace::Loss>(beside_each_other({process(Job(1)), process(Job(1))}));
  std::erase_if(trace.alone.front().events,
                [](const trace::Event& event) { return event.is<trace::Loss>(); });
  expect_only(trace, "silent-single-process", {0}, 0);
  auto* start = first<trace::Parameters>(trace.alone.front());
  ASSERT_NE(start, nullptr);
  start->values.front().norm *= 1.01;
  expect_nothing(trace);
}

TEST(Alone, OtherSettingsAreAnotherTraining) {
  auto trace = beside_each_other({process(Job(1)), process(Job(1))});
  record(trace.alone.front(), -1,
         trace::Settings{trace::SettingsOf::model, {"fc"}, {"Dropout(p=0.1)"}});
  expect_nothing(trace);
}

TEST(Alone, WithoutUpdatesNothingCanBeSaid) {
  const auto trace = without<trace::Update>(beside_each_other({process(Job(1)), process(Job(1))}));
  EXPECT_EQ(state(trace, "silent-single-process"), diagnose::State::not_triggered);
}

}  // namespace
}  // namespace lockstep::simulated
