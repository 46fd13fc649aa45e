// Probes of checkpoints and of what a rank holds; and of the updates that a rank was done before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/file.h>
#include <lockstep/base/processors.h>
#include <lockstep/record/checked_backend.h>
#include <lockstep/record/content.h>
#include <lockstep/record/recorder.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/join.h>

#include <cstdlib>
#include <set>

#include "recorded_job.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using TensorState = ValueOf<at::Tensor>;

std::uint64_t hash_of(const TensorState& value) {
  std::set<std::string> devices;
  return record::hash_value(value, &devices);
}

TEST(RecordState, EqualStatesHaveEqualHashes) {
  const auto base = torch::arange(12, torch::kFloat).view({3, 4});
  EXPECT_EQ(hash_of(base), hash_of(base.clone()));
  EXPECT_EQ(hash_of(base.t()), hash_of(base.t().contiguous())) << "the numbers count, not strides";
  EXPECT_EQ(hash_of(TensorState::Dict{{"a", 1}, {"b", base}}),
            hash_of(TensorState::Dict{{"a", 1}, {"b", base.clone()}}));
}

TEST(RecordState, WhateverDiffersShows) {
  const auto base = torch::arange(12, torch::kFloat).view({3, 4});
  auto changed = base.clone();
  changed[2][3] += 1;
  const std::vector<std::pair<std::string, TensorState>> states{
      {"as it is", TensorState::Dict{{"a", 1}, {"b", base}}},
      {"another key", TensorState::Dict{{"c", 1}, {"b", base}}},
      {"another number", TensorState::Dict{{"a", 2}, {"b", base}}},
      {"a double", TensorState::Dict{{"a", 1.0}, {"b", base}}},
      {"true", TensorState::Dict{{"a", true}, {"b", base}}},
      {"a text", TensorState::Dict{{"a", "1"}, {"b", base}}},
      {"another value", TensorState::Dict{{"a", 1}, {"b", changed}}},
      {"another shape", TensorState::Dict{{"a", 1}, {"b", base.view({4, 3})}}},
      {"another type", TensorState::Dict{{"a", 1}, {"b", base.to(torch::kDouble)}}},
      {"one less", TensorState::Dict{{"a", 1}}},
      {"a list", TensorState::List{1, base}},
  };
  for (std::size_t i = 0; i < states.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      EXPECT_NE(hash_of(states[i].second), hash_of(states[j].second))
          << states[i].first << " and " << states[j].first;
}

TEST(RecordState, OfTheTrainingHasItsPartsAndTheirDevices) {
  RecordJob job(1);
  record::Probes probes(job.writer(0));
  const auto on_meta = torch::ones({2}, at::kMeta);
  probes.training_state("saved",
                        {{"model", torch::ones(2)},
                         {"optimizer", TensorState::Dict{{"m", torch::ones(2)}, {"v", on_meta}}},
                         {"scheduler", 3}});
  const auto trace = job.trace_of(0);
  const auto states = trace.all<trace::TrainingState>();
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(states[0].event->moment, "saved");
  EXPECT_THAT(states[0].event->names, ElementsAre("model", "optimizer", "scheduler"));
  EXPECT_THAT(states[0].event->devices, ElementsAre("cpu", "cpu, meta", ""));
  EXPECT_THAT(
      states[0].event->hashes,
      ElementsAre(hash_of(torch::ones(2)),
                  hash_of(TensorState::Dict{{"m", torch::ones(2)}, {"v", on_meta}}), hash_of(3)));
}

// Longer than what is read at a time.
TEST(RecordState, OfACheckpointsFileEveryByteCounts) {
  const TemporaryFolder folder("lockstep-record");
  const auto file = folder.path() / "run" / ".." / "model.pt", same = folder.path() / "model.pt";
  std::filesystem::create_directory(folder.path() / "run");
  RecordJob job(1);
  record::Probes probes(job.writer(0));
  std::string bytes(std::size_t{3} << 20, 'x');
  probes.checkpoint_file("save_begin", same, {.device = "cpu"});
  probes.checkpoint_file("load", same, {.accepted = false});
  write_file(same, bytes);
  probes.checkpoint_file("save_end", same, {});
  probes.checkpoint_file("load", file, {});
  for (const auto place : {std::size_t{0}, std::size_t{1} << 20, bytes.size() - 1}) {
    auto damaged = bytes;
    damaged[place] = 'y';
    write_file(same, damaged);
    probes.checkpoint_file("load", same, {});
  }
  write_file(same, bytes.substr(1));
  probes.checkpoint_file("load", same, {});
  std::filesystem::remove(same);
  std::filesystem::create_directory(same);  // what cannot be read harms nobody
  probes.checkpoint_file("load", same, {});

  const auto trace = job.trace_of(0);
  std::vector<std::string> actions;
  std::vector<std::uint64_t> contents;
  for (const auto& at : trace.all<trace::CheckpointFile>()) {
    actions.push_back(at.event->action);
    contents.push_back(at.event->content);
    EXPECT_EQ(at.event->file, trace.all<trace::CheckpointFile>()[0].event->file) << "one path";
  }
  EXPECT_THAT(actions, ElementsAre("save_begin", "load", "save_end", "load", "load", "load", "load",
                                   "load", "load"));
  EXPECT_EQ(contents[0], 0u) << "not looked at";
  EXPECT_EQ(contents[1], 0u) << "not there";
  EXPECT_EQ(contents[2], contents[3]);
  const std::set<std::uint64_t> different(contents.begin() + 3, contents.end() - 1);
  EXPECT_EQ(different.size(), 5u);
  EXPECT_EQ(contents.back(), 0u) << "a folder";
}

TEST(RecordState, OfADataFileHasItsPath) {
  const TemporaryFolder folder("lockstep-record");
  RecordJob job(1);
  record::Probes probes(job.writer(0));
  probes.data_file("write_begin", folder.path() / "pixels.bin");
  probes.data_file("read", folder.path() / "." / "pixels.bin");
  probes.data_file("read", folder.path() / "labels.bin", false);
  record::Probes(nullptr).data_file("read", folder.path() / "pixels.bin");

  const auto trace = job.trace_of(0);
  const auto events = trace.all<trace::DataFile>();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].event->file, events[1].event->file) << "one path";
  EXPECT_NE(events[1].event->file, events[2].event->file);
  EXPECT_TRUE(events[1].event->accepted);
  EXPECT_FALSE(events[2].event->accepted);
}

TEST(RecordState, OfAPlaceIsTheLaunchersWordAndTorchsThreads) {
  RecordJob job(1);
  record::Probes probes(job.writer(0));
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  ::setenv("RANK", "5", 1), ::setenv("WORLD_SIZE", "8", 1);
  ::setenv("LOCAL_RANK", "1", 1), ::setenv("LOCAL_WORLD_SIZE", "4", 1);
  probes.tell(record::placement_of_this_process());
  record::Probes(nullptr).tell(record::placement_of_this_process());
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
    ::unsetenv(name);
  at::set_num_threads(threads);

  const auto trace = job.trace_of(0);
  const auto places = trace.all<trace::Placement>();
  ASSERT_EQ(places.size(), 1u);
  EXPECT_EQ(places[0].event->local_rank, 1);
  EXPECT_EQ(places[0].event->local_world_size, 4);
  EXPECT_EQ(places[0].event->threads, 3);
  EXPECT_EQ(places[0].event->processors,
            static_cast<std::int64_t>(processors_of_this_process().size()));
  EXPECT_EQ(places[0].event->node, record::placement_of_this_process().node);
}

// Rank 1 is done after its first update. Rank 0's second is of two microbatches; and a forward without gradient is none.
TEST(RecordState, StepsGoOnWhereAnUpdateIsShadowed) {
  for (const bool checked : {false, true}) {
    RecordJob job(2);
    if (checked)
      job.options.decorate = [observe = job.options.decorate](BackendPtr backend,
                                                              const StorePtr& store) {
        return record::check(observe(std::move(backend), store), store);
      };
    run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
      const auto recorder = std::make_shared<record::Recorder>(job.writer(group->getRank()));
      observe(recorder);
      record::Probes probes(job.writer(group->getRank()), {.first = 100});
      auto model = DistributedDataParallel(seeded(5, [] { return Mlp(4, 6, 3); }), group);
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      probes.attach(*model.module());
      probes.start();
      const auto backward = [&] { model(inputs_of(0)).square().mean().backward(); };
      const auto update = [&] {
        backward();
        optimizer.step();
        probes.updated(optimizer);
      };
      join({model.engine()}, [&] {
        update();
        if (group->getRank() == 1) return;
        {
          const NoSync accumulates(model.engine());
          backward();
        }
        update();
        const torch::NoGradGuard no_grad;
        model(inputs_of(0));
      });
      join({model.engine()}, [&] { update(); });
    });
    for (const int rank : {0, 1}) {
      std::vector<std::int64_t> steps;
      const auto trace = job.trace_of(rank);
      for (const auto& at : trace.all<trace::Update>()) steps.push_back(at.step);
      EXPECT_EQ(steps, rank == 0 ? (std::vector<std::int64_t>{0, 1, 2})
                                 : (std::vector<std::int64_t>{0, 2}));
    }
  }
}

}  // namespace
}  // namespace lockstep::test
