// record_into: one call, and the groups made with the options are recorded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/record/record_into.h>
#include <lockstep/trace/attempts.h>
#include <lockstep/trace/reader.h>

#include <barrier>
#include <future>

#include "../support/refusal.h"
#include "../support/thread_ranks.h"
#include "../support/variable.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;
using testing::Variable;

class RecordInto : public ::testing::Test {
 protected:
  // Of the caller's own environment, since the test's ranks are numbered by options.
  InitOptions options_of(int rank, int world_size) const {
    return {.init_method = "file://" + (folder_.path() / "store").string(),
            .rank = rank,
            .world_size = world_size,
            .local_rank = rank,
            .timeout = std::chrono::seconds(20)};
  }
  std::filesystem::path traces() const { return folder_.path() / "new" / "traces"; }

  TemporaryFolder folder_{"lockstep-record-into"};
};

// Runs body(rank) for both ranks at once; what one throws comes out.
void two_ranks(const std::function<void(int rank)>& body) {
  auto other = std::async(std::launch::async, body, 1);
  body(0);
  other.get();
}

template <class Event>
std::size_t count(const trace::ParticipantTrace& rank) {
  return rank.all<Event>().size();
}

TEST_F(RecordInto, EveryRankAndGroupIsThere) {
  torch::set_num_threads(1);
  two_ranks([&](int rank) {
    auto options = options_of(rank, 2);
    record::record_into(options, traces());
    auto group = init_process_group(options);
    auto ones = torch::ones({3});
    all_reduce(*group, ones);
    auto only_rank_1 = new_group(group, {1}, options);
    if (only_rank_1) {
      all_reduce(*only_rank_1, ones);
      destroy_process_group(only_rank_1);
    }
    all_reduce(*group, ones);  // nobody leaves while the other still connects
    destroy_process_group(group);
  });

  const auto trace = trace::read(traces());
  ASSERT_EQ(trace.world_size, 2);
  ASSERT_EQ(trace.ranks.size(), 2u);
  for (const auto& rank : trace.ranks) {
    EXPECT_TRUE(rank.closed);
    EXPECT_EQ(count<trace::Placement>(rank), 1u) << "though two groups were made";
    EXPECT_EQ(count<trace::Attempt>(rank), 0u);
    int of_the_world = 0, of_the_member = 0;
    for (const auto& at : rank.all<trace::Collective>()) {
      const auto& call = *at.event;
      if (call.op != "allreduce") continue;
      EXPECT_EQ(call.sizes, std::vector<std::int64_t>{3});
      (call.group == "0" ? of_the_world : of_the_member) += 1;
    }
    EXPECT_EQ(of_the_world, 2);
    EXPECT_EQ(of_the_member, rank.participant.rank);
  }
}

TEST_F(RecordInto, WhatWasSetBeforeIsStillDone) {
  auto options = options_of(0, 1);
  bool decorated = false;
  int told = 0;
  options.decorate = [&](BackendPtr backend, const StorePtr& store) {
    decorated = store != nullptr;
    return backend;
  };
  options.on_store = [&](const StoreOpening&) { ++told; };
  const auto writer = record::record_into(options, traces());
  options.on_store({.serves = true, .address = "127.0.0.1", .port = 1234});
  auto group = init_process_group(options);
  destroy_process_group(group);
  EXPECT_TRUE(decorated);
  EXPECT_EQ(told, 1);
  const auto rank = trace::read_file(trace::trace_file(traces(), 0));
  const auto calls = rank.all<trace::StoreCall>();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].event->action, "serve");
  EXPECT_EQ(calls[0].event->port, 1234);
}

TEST_F(RecordInto, ALaunchersRanksAreNumberedByIt) {
  const Variable rank("RANK", "2"), world("WORLD_SIZE", "3");
  InitOptions options;
  EXPECT_EQ(record::record_into(options, traces())->participant().rank, 2);
  const auto trace = trace::read_file(trace::trace_file(traces(), 2));
  EXPECT_EQ(trace.participant.world_size, 3);
}

TEST_F(RecordInto, AnAttemptHasAFolderOfItsOwn) {
  const Variable most("TORCHELASTIC_MAX_RESTARTS", "3");
  for (const char* attempt : {"0", "1"}) {
    const Variable count("TORCHELASTIC_RESTART_COUNT", attempt);
    auto options = options_of(0, 1);
    record::record_into(options, traces());
  }
  EXPECT_EQ(trace::attempt_folders(traces()).size(), 2u);
  const auto trace = trace::read_job(traces());
  const auto attempts = trace.ranks.at(0).all<trace::Attempt>();
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_EQ(attempts[1].event->restart_count, 1);
  EXPECT_EQ(attempts[1].event->max_restarts, 3);
}

TEST_F(RecordInto, MisuseIsTold) {
  auto options = options_of(0, 1);
  record::record_into(options, traces());
  EXPECT_THAT(refusal([&] { record::record_into(options, traces()); }),
              ::testing::AllOf(HasSubstr((traces() / "rank_0.trace").string()),
                               HasSubstr("a folder of its own")));

  write_file(folder_.path() / "a_file", "");
  EXPECT_THAT(refusal([&] { record::record_into(options, folder_.path() / "a_file" / "x"); }),
              ::testing::AllOf(HasSubstr("a_file/x"), HasSubstr("Not a directory")));

  auto beyond = options_of(2, 2);
  EXPECT_THAT(refusal<UsageError>([&] { record::record_into(beyond, folder_.path() / "other"); }),
              HasSubstr("rank 2 of 2"));
}

TEST_F(RecordInto, ARankThatIsSetTooLateIsTold) {
  std::vector<std::string> told(2);
  std::barrier connected(2);  // a rank that threw before would make the other's connecting fail
  two_ranks([&](int rank) {
    InitOptions options;
    record::record_into(options, traces() / std::to_string(rank));
    auto numbered = options_of(rank, 2);
    numbered.decorate = [&](BackendPtr backend, const StorePtr& store) {
      connected.arrive_and_wait();
      return options.decorate(std::move(backend), store);
    };
    told[static_cast<std::size_t>(rank)] =
        refusal<UsageError>([&] { init_process_group(numbered); });
  });
  for (const auto& text : told)
    EXPECT_THAT(text, HasSubstr("a group of 2 ranks, and it was told of 1"));
}

}  // namespace
}  // namespace lockstep::test
