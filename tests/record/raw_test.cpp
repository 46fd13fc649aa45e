// Probes of what no backend of c10d carries: raw collectives, streams, shared memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/file.h>
#include <lockstep/record/probes.h>
#include <lockstep/trace/reader.h>

namespace lockstep::test {
namespace {

trace::Collective all_reduce_event(std::int64_t sequence) {
  return {.sequence = sequence,
          .group = "A",
          .op = "allreduce",
          .reduce_op = "sum",
          .dtype = "float32",
          .sizes = {4}};
}

TEST(RecordRaw, ACollectiveStandsOnTheFlightBoardUntilItIsLeft) {
  const TemporaryFolder folder("lockstep-record-raw");
  auto writer = std::make_shared<trace::Writer>(folder.path(), trace::Participant{0, 2});
  const auto file = trace::trace_file(folder.path(), 0);
  record::Probes probes(writer);
  probes.tell(trace::Group{"joined", "A", {0, 1}});
  const auto first = probes.enter(all_reduce_event(1)), second = probes.enter(all_reduce_event(2));
  EXPECT_EQ(trace::read_flight_board(file).in_flight.size(), 2u);
  probes.leave(second, /*failed=*/true);
  ASSERT_EQ(trace::read_flight_board(file).in_flight.size(), 1u);
  probes.leave(first);
  EXPECT_TRUE(trace::read_flight_board(file).in_flight.empty());

  const auto rank = trace::read_file(file);
  const auto calls = rank.all<trace::Collective>();
  ASSERT_EQ(calls.size(), 2u);
  for (const auto& call : calls) {
    EXPECT_NE(call.left_ns, 0);
    EXPECT_EQ(call.event->failed, call.event->sequence == 2 ? 1 : 0);
  }
  ASSERT_EQ(rank.all<trace::Group>().size(), 1u);
  EXPECT_EQ(rank.all<trace::Group>()[0].event->members, (std::vector<std::int64_t>{0, 1}));
}

TEST(RecordRaw, StreamsAndMemoryAreWrittenAsTold) {
  const TemporaryFolder folder("lockstep-record-raw");
  auto writer = std::make_shared<trace::Writer>(folder.path(), trace::Participant{0, 1});
  record::Probes probes(writer);
  probes.tell(trace::StreamUse{"read", 7, 100, 0});
  probes.tell(trace::SharedMemory{"failed", 5, 300, 200, 250, 28});
  const auto rank = trace::read_file(trace::trace_file(folder.path(), 0));
  ASSERT_EQ(rank.events.size(), 2u);
  const auto& use = *rank.events[0].as<trace::StreamUse>();
  EXPECT_EQ(std::tie(use.action, use.stream, use.buffer, use.event),
            std::make_tuple(std::string("read"), 7, 100u, 0u));
  const auto& memory = *rank.events[1].as<trace::SharedMemory>();
  EXPECT_EQ(std::tie(memory.needed, memory.free, memory.total, memory.error),
            std::make_tuple(300, 200, 250, 28));
}

TEST(RecordRaw, WithoutAWriterNothingHappens) {
  record::Probes probes(nullptr);
  EXPECT_EQ(probes.enter(all_reduce_event(1)), 0u);
  probes.leave(0);
  probes.tell(trace::StreamUse{"write", 1, 2, 0});
}

}  // namespace
}  // namespace lockstep::test
