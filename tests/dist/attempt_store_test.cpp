// A store that outlives a job's attempts: nobody may read what an earlier one left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/dist/attempt_store.h>

#include <future>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "../support/refusal.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

std::future<StorePtr> come(const StorePtr& store, int rank, int world_size,
                           std::chrono::milliseconds timeout = 20s) {
  return std::async(std::launch::async, [=] {
    return detail::part_of_this_attempt(store, {.rank = rank, .world_size = world_size}, timeout);
  });
}

// All ranks' parts; `first` comes first, and the others when it has left its word.
std::vector<StorePtr> attempt(const StorePtr& store, int world_size, int first) {
  const auto key = "lockstep/attempt/word/" + std::to_string(first);
  const auto before = store->check({key}) ? store->get_to_str(key) : "";
  std::vector<std::future<StorePtr>> coming(static_cast<std::size_t>(world_size));
  coming[static_cast<std::size_t>(first)] = come(store, first, world_size);
  while (!store->check({key}) || store->get_to_str(key) == before) std::this_thread::yield();
  for (int rank = 0; rank < world_size; ++rank)
    if (rank != first) coming[static_cast<std::size_t>(rank)] = come(store, rank, world_size);
  std::vector<StorePtr> parts;
  for (auto& part : coming) parts.push_back(part.get());
  return parts;
}

TEST(AttemptStore, EveryAttemptHasAPartOfItsOwn) {
  for (const int world_size : {2, 3, 5}) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    for (int number = 0; number < 20; ++number) {
      const auto parts = attempt(store, world_size, number % world_size);
      for (int rank = 0; rank < world_size; ++rank) {
        auto& part = *parts[static_cast<std::size_t>(rank)];
        const auto key = "address/" + std::to_string(rank);
        EXPECT_FALSE(part.check({key})) << "left by an earlier attempt";
        part.set(key, std::to_string(number));
      }
      for (const auto& part : parts)
        for (int rank = 0; rank < world_size; ++rank)
          EXPECT_EQ(part->get_to_str("address/" + std::to_string(rank)), std::to_string(number));
    }
  }
}

// The last attempt's words and confirmations are all there, and are no rank's of this one.
TEST(AttemptStore, NamesThoseThatDoNotCome) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  attempt(store, 3, 0);
  const auto message = [&](int rank) {
    return refusal<std::exception>([&] { come(store, rank, 3, 200ms).get(); });
  };
  EXPECT_THAT(message(0), ::testing::HasSubstr("from: rank 1, rank 2"));
  EXPECT_THAT(message(2), ::testing::HasSubstr("from: rank 0"));
}

}  // namespace
}  // namespace lockstep
