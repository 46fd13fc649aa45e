// Probes::random_numbers: a hash for each sample, of its own row and nothing else.
#include <gtest/gtest.h>
#include <lockstep/base/error.h>

#include "recorded_job.h"

namespace lockstep::test {
namespace {

std::vector<trace::RandomNumbers> recorded(const std::vector<at::Tensor>& batches) {
  RecordJob job(1);
  {
    record::Probes probes(job.writer(0));
    for (const auto& numbers : batches) probes.random_numbers({7, 3, 5}, numbers);
  }
  const auto trace = job.trace_of(0);
  std::vector<trace::RandomNumbers> events;
  for (const auto& at : trace.all<trace::RandomNumbers>()) events.push_back(*at.event);
  return events;
}

TEST(RecordRandomNumbers, AreHashedRowByRow) {
  const auto numbers = torch::tensor({{0.25, 0.5}, {0.25, 0.75}, {0.25, 0.5}}, torch::kFloat64);
  const auto reversed = numbers.flip(0);
  const auto strided = numbers.t().contiguous().t();
  const auto events = recorded({numbers, reversed, strided});
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].ids.list(), (std::vector<std::int64_t>{7, 3, 5}));
  ASSERT_EQ(events[0].hashes.size(), 3U);
  EXPECT_EQ(events[0].hashes[0], events[0].hashes[2]);
  EXPECT_NE(events[0].hashes[0], events[0].hashes[1]);
  EXPECT_EQ(events[1].hashes[1], events[0].hashes[1]);
  EXPECT_EQ(events[2].hashes, events[0].hashes) << "what counts is the numbers, not their layout";
}

TEST(RecordRandomNumbers, NeedARowForEachSample) {
  EXPECT_THROW(recorded({torch::rand({2, 2})}), UsageError);
  EXPECT_THROW(recorded({torch::rand({})}), UsageError);
  record::Probes silent(nullptr);
  silent.random_numbers({1}, torch::rand({2, 2}));  // says nothing, whatever it is given
}

}  // namespace
}  // namespace lockstep::test
