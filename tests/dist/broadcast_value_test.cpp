// State from one rank to all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/checkpoint/broadcast_value.h>

#include "../support/thread_ranks.h"

namespace lockstep::test {
namespace {

Value some_state() {
  const auto base = torch::arange(6, torch::kFloat);
  return Value::Dict{{"step", 7},
                     {"name", "run"},
                     {"nothing", Value()},
                     {"view", base.slice(0, 2, 5)},
                     {"empty", torch::empty({0, 3})},
                     {"half", torch::full({2}, 1.5, torch::kBFloat16)},
                     {"base", base},
                     {"list", Value::List{1.5, true, torch::ones({2, 2}).t()}}};
}

TEST(BroadcastValue, GivesEveryRankTheRootsState) {
  for (const int root : {0, 2})
    run_thread_ranks(3, [&](ProcessGroupPtr group) {
      const bool sends = group->getRank() == root;
      const auto got = broadcast_value(*group, sends ? some_state() : Value(), root);
      const auto expected = some_state();
      EXPECT_EQ(got.as_dict().size(), expected.as_dict().size());
      EXPECT_EQ(got.at("step").as_int(), 7);
      EXPECT_EQ(got.at("name").as_string(), "run");
      for (const auto* name : {"view", "empty", "half", "base"})
        EXPECT_TRUE(got.at(name).as_tensor().equal(expected.at(name).as_tensor())) << name;
      EXPECT_EQ(got.at("list").as_list().at(0).as_double(), 1.5);
      EXPECT_TRUE(got.at("list").as_list().at(1).as_bool());
      EXPECT_TRUE(got.at("list").as_list().at(2).as_tensor().equal(torch::ones({2, 2})));
      EXPECT_TRUE(got.at("view").as_tensor().is_alias_of(got.at("base").as_tensor()));
    });
}

TEST(BroadcastValue, OfWhatNoFileCanHoldFailsOnEveryRank) {
  const auto thrown = try_thread_ranks({.world_size = 3}, [](ProcessGroupPtr group) {
    const bool sends = group->getRank() == 1;
    const auto sparse = torch::ones({2, 2}).to_sparse();
    try {
      broadcast_value(*group, sends ? Value(Value::Dict{{"s", sparse}}) : Value(), 1);
      ADD_FAILURE() << "rank " << group->getRank() << " got something";
    } catch (const CollectiveError&) {
      throw;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(sends ? "s is a" : "rank 1 has a value"));
    }
    barrier(*group);  // the group is as it was
  });
  for (const auto& error : thrown) EXPECT_FALSE(error);
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    EXPECT_THROW(broadcast_value(*group, Value(), 2), UsageError);
  });
}

}  // namespace
}  // namespace lockstep::test
