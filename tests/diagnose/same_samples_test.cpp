// Samples that are other numbers on one rank than on another.
#include <gtest/gtest.h>

#include <functional>
#include <type_traits>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::Severity;
using diagnose::State;

// What a rank is given as sample `id`, in its `n`-th batch.
using Given = std::function<std::int64_t(std::int64_t rank, std::int64_t id, std::int64_t n)>;

std::int64_t same(std::int64_t, std::int64_t id, std::int64_t) {
  return 1'000 + id;
}
std::int64_t of_last_rank(std::int64_t last, std::int64_t id) {
  return id + 5'000 * (last + 1);
}

class SameSamples : public testing::TestWithParam<int> {
 protected:
  std::int64_t last() const { return GetParam() - 1; }
  // Each train batch with what it holds, told by the loader (T: Contents) or by a forward (Rows).
  template <class T>
  trace::Trace given(const Given& what, Job job) const {
    auto trace = job.run();
    for (auto& rank : trace.ranks) {
      std::vector<trace::Event> events;
      std::int64_t n = 0;
      for (auto& event : rank.events) {
        events.push_back(event);
        const auto* drawn = event.template as<trace::Samples>();
        if (!drawn || drawn->phase != "train") continue;
        Ids hashes;
        for (const auto id : drawn->ids) hashes.push_back(what(rank.participant.rank, id, n));
        ++n;
        auto next = event;
        if constexpr (std::is_same_v<T, trace::Contents>)
          next.payload = trace::SharedPayload(T{drawn->ids, hashes});
        else
          next.payload = trace::SharedPayload(T{hashes});
        events.push_back(next);
      }
      rank.events = std::move(events);
    }
    return trace;
  }
  template <class T = trace::Contents>
  trace::Trace given(const Given& what) const {
    return given<T>(what, Job(GetParam()));
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, SameSamples, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(SameSamples, AreRight) {
  expect_nothing(given(same));
  expect_nothing(given<trace::Rows>(same));
  EXPECT_EQ(state(given(same), "samples-differ-across-ranks"), State::clean);
}

TEST_P(SameSamples, ThatAreOthersOnOneRankAreNamed) {
  const auto stale = [this](std::int64_t rank, std::int64_t id, std::int64_t n) {
    return rank == last() ? of_last_rank(rank, id) : same(rank, id, n);
  };
  for (const auto& trace : {given(stale), given<trace::Rows>(stale)})
    expect_only(trace, "samples-differ-across-ranks", odd_one_out(GetParam(), GetParam() - 1), 0,
                Severity::advice);
}

// As statistics of a rank's own share make them.
TEST_P(SameSamples, ThatAreOthersOnEachRankAreNamed) {
  expect_only(given([](std::int64_t rank, std::int64_t id, std::int64_t) {
                return of_last_rank(rank, id);
              }),
              "samples-differ-across-ranks", all_ranks(GetParam()), 0, Severity::advice);
}

// A file of many.
TEST_P(SameSamples, OfWhichSomeAreOthersOnOneRankAreNamed) {
  const auto some = [this](std::int64_t rank, std::int64_t id, std::int64_t n) {
    return rank == last() && id % 3 == 0 ? of_last_rank(rank, id) : same(rank, id, n);
  };
  Job job(GetParam());
  job.passes = 6;
  const auto trace = given<trace::Contents>(some, job);
  EXPECT_EQ(state(trace, "samples-differ-across-ranks"), State::found);
}

TEST_P(SameSamples, ThatAreAugmentedAreRight) {
  expect_nothing(given([](std::int64_t rank, std::int64_t id, std::int64_t n) {
    return (id + 3) * 1'000'003 + 17 * n + rank;
  }));
}

// One in three is turned over, on either rank.
TEST_P(SameSamples, OfWhichSomeAreAugmentedAreRight) {
  expect_nothing(given([](std::int64_t rank, std::int64_t id, std::int64_t n) {
    return id + ((id * 7 + n * 5 + rank) % 3 == 0 ? 10'000 : 0);
  }));
}

// Each rank counts its own from 0.
TEST_P(SameSamples, OfSharesThatAreCountedFromNoughtAreRight) {
  Job job(GetParam());
  job.dataset = [](int) { return trace::Dataset{"train", 0, 0, 0, 0, 0}; };
  job.order = [](int, int pass) { return permutation(40, pass); };
  const auto own = given<trace::Contents>(
      [](std::int64_t rank, std::int64_t id, std::int64_t) { return of_last_rank(rank, id); }, job);
  EXPECT_EQ(state(own, "samples-differ-across-ranks"), State::not_triggered);
}

// What ids are of differs, so one id is not one sample.
TEST_P(SameSamples, OfOtherDataSetsAreNotCompared) {
  Job job(GetParam());
  job.dataset = [](int rank) {
    return trace::Dataset{"train", 101, 101, 7 + static_cast<std::uint64_t>(rank), 0, 0};
  };
  const auto own = given<trace::Contents>(
      [](std::int64_t rank, std::int64_t id, std::int64_t) { return of_last_rank(rank, id); }, job);
  EXPECT_EQ(state(own, "samples-differ-across-ranks"), State::not_applicable);
}

TEST_P(SameSamples, OfRanksThatTrainOnTheirOwnAreNotJudged) {
  const auto apart = without<trace::Engine>(without<trace::LocalGradients>(given(same)));
  EXPECT_EQ(state(apart, "samples-differ-across-ranks"), State::not_triggered);
}

}  // namespace
}  // namespace lockstep::simulated
