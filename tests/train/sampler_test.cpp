// DistributedSampler's properties; tests/parity compares it with Python's, index for index.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/train/distributed_sampler.h>
#include <torch/torch.h>

#include <map>
#include <set>
#include <sstream>

#include "../support/refusal.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Options = DistributedSamplerOptions;

// How often each id is seen by all ranks together in one epoch.
std::map<std::int64_t, int> times_seen(Options options, std::int64_t epoch) {
  std::map<std::int64_t, int> seen;
  for (options.rank = 0; options.rank < options.num_replicas; ++options.rank) {
    DistributedSampler sampler(options);
    sampler.set_epoch(epoch);
    const auto ids = sampler.indices();
    EXPECT_EQ(static_cast<std::int64_t>(ids.size()), sampler.size());
    for (const auto id : ids) ++seen[id];
  }
  return seen;
}

int total(const std::map<std::int64_t, int>& seen) {
  int sum = 0;
  for (const auto& [id, times] : seen) sum += times;
  return sum;
}

TEST(DistributedSampler, PaddedUnionCoversEverything) {
  for (int world = 1; world <= 16; ++world)
    for (const std::int64_t n : {1, 2, 7, 16, 17, 100})
      for (const bool shuffle : {true, false}) {
        SCOPED_TRACE(::testing::Message() << "W " << world << " N " << n << " shuffle " << shuffle);
        const auto seen =
            times_seen({.dataset_size = n, .num_replicas = world, .shuffle = shuffle}, 2);
        EXPECT_EQ(static_cast<std::int64_t>(seen.size()), n);
        EXPECT_EQ(seen.begin()->first, 0);
        EXPECT_EQ(seen.rbegin()->first, n - 1);
        // ceil(N/W) W indices: no id more than once oftener than another.
        const auto padded = (n + world - 1) / world * world;
        EXPECT_EQ(total(seen), padded);
        for (const auto& [id, times] : seen) {
          EXPECT_GE(times, padded / n);
          EXPECT_LE(times, (padded + n - 1) / n);
        }
      }
}

TEST(DistributedSampler, DropLastSeesNothingTwice) {
  for (int world = 1; world <= 16; ++world)
    for (const std::int64_t n : {1, 7, 16, 17, 100}) {
      const auto seen =
          times_seen({.dataset_size = n, .num_replicas = world, .drop_last = true}, 0);
      EXPECT_EQ(static_cast<std::int64_t>(seen.size()), n / world * world);
      EXPECT_EQ(total(seen), n / world * world) << "W " << world << " N " << n;
    }
}

// What drop_last leaves out changes from epoch to epoch: the tail of the permutation, not of the
// data.
TEST(DistributedSampler, DropLastReachesEverySampleInTime) {
  std::set<std::int64_t> seen;
  for (std::int64_t epoch = 0; epoch < 10; ++epoch)
    for (const auto& [id, times] :
         times_seen({.dataset_size = 7, .num_replicas = 4, .drop_last = true}, epoch))
      seen.insert(id);
  EXPECT_EQ(seen.size(), 7U);
}

TEST(DistributedSampler, UnshuffledIsRoundRobinWithTheHeadAsPadding) {
  DistributedSampler sampler({.dataset_size = 5, .num_replicas = 2, .rank = 1, .shuffle = false});
  EXPECT_THAT(sampler.indices(), ElementsAre(1, 3, 0));
  DistributedSampler many({.dataset_size = 2, .num_replicas = 5, .rank = 4, .shuffle = false});
  EXPECT_THAT(many.indices(), ElementsAre(0));
}

TEST(DistributedSampler, EpochAndSeedMakeTheOrder) {
  DistributedSampler sampler({.dataset_size = 100, .num_replicas = 2, .seed = 3});
  const auto first = sampler.indices();
  EXPECT_EQ(sampler.indices(), first);
  sampler.set_epoch(1);
  EXPECT_EQ(sampler.epoch(), 1);
  EXPECT_NE(sampler.indices(), first);
  // As Python's: only seed + epoch counts.
  DistributedSampler other({.dataset_size = 100, .num_replicas = 2, .seed = 4});
  EXPECT_EQ(other.indices(), sampler.indices());
  DistributedSampler negative({.dataset_size = 100, .num_replicas = 2, .seed = 5});
  negative.set_epoch(-1);
  EXPECT_EQ(negative.indices(), sampler.indices());
}

TEST(DistributedSampler, LeavesTheGlobalGenerator) {
  torch::manual_seed(5);
  const auto expected = torch::rand({4});
  torch::manual_seed(5);
  DistributedSampler({.dataset_size = 100}).indices();
  EXPECT_TRUE(torch::rand({4}).equal(expected));
}

TEST(DistributedSampler, Batches) {
  DistributedSampler sampler({.dataset_size = 10, .num_replicas = 2, .rank = 1, .shuffle = false});
  EXPECT_THAT(sampler.batches(2),
              ElementsAre(ElementsAre(1, 3), ElementsAre(5, 7), ElementsAre(9)));
  EXPECT_THAT(sampler.batches(2, true), ElementsAre(ElementsAre(1, 3), ElementsAre(5, 7)));
  EXPECT_THAT(sampler.batches(5), ElementsAre(ElementsAre(1, 3, 5, 7, 9)));
  EXPECT_TRUE(sampler.batches(6, true).empty());
  EXPECT_THROW(sampler.batches(0), UsageError);
}

std::string refusal(const Options& options) {
  return lockstep::refusal<UsageError>([&] { DistributedSampler sampler(options); });
}

// Of each rank's batches, in both ways of dealing them, and with a tail.
TEST(DistributedSampler, OneProcessIsGivenTheReplicasBatchesJoined) {
  constexpr int kReplicas = 3;
  for (const std::int64_t size : {24, 26})
    for (const bool drop_last : {false, true}) {
      SCOPED_TRACE(::testing::Message() << size << " samples, drop_last " << drop_last);
      const auto sampler_of = [&](int replicas, int rank) {
        return DistributedSampler(
            {.dataset_size = size, .num_replicas = replicas, .rank = rank, .drop_last = drop_last});
      };
      std::vector<std::multiset<std::int64_t>> wanted;
      for (int rank = 0; rank < kReplicas; ++rank) {
        const auto batches = sampler_of(kReplicas, rank).batches(4);
        wanted.resize(batches.size());
        for (std::size_t i = 0; i < batches.size(); ++i)
          wanted[i].insert(batches[i].begin(), batches[i].end());
      }
      const auto sizes = sampler_of(kReplicas, 0).size();
      join_replicas(kReplicas);
      auto one = sampler_of(1, 0);
      EXPECT_EQ(one.size(), sizes);
      std::vector<std::multiset<std::int64_t>> given;
      for (const auto& batch : one.batches(4)) given.emplace_back(batch.begin(), batch.end());
      EXPECT_EQ(given, wanted);
      one.reset();
      for (const auto& batch : wanted) {
        const auto next = one.next(4);
        ASSERT_TRUE(next);
        EXPECT_EQ(std::multiset<std::int64_t>(next->begin(), next->end()), batch);
      }
      EXPECT_FALSE(one.next(4));
      join_replicas(1);
    }
}

TEST(DistributedSampler, SwappedReplicasHaveEachOthersSamples) {
  const auto samples = [](int rank) {
    return DistributedSampler({.dataset_size = 10, .num_replicas = 3, .rank = rank}).indices();
  };
  const std::vector before{samples(0), samples(1), samples(2)};
  swap_replicas(true);
  EXPECT_THAT((std::vector{samples(2), samples(1), samples(0)}),
              ::testing::ElementsAreArray(before));
  swap_replicas(false);
}

TEST(DistributedSampler, RefusesOptionsWithTheirValue) {
  EXPECT_THAT(refusal({.dataset_size = 0}), HasSubstr("dataset_size must be above 0, found 0"));
  EXPECT_THAT(refusal({.dataset_size = 5, .num_replicas = 0}),
              HasSubstr("num_replicas must be above 0, found 0"));
  EXPECT_THAT(refusal({.dataset_size = 5, .num_replicas = 2, .rank = 2}),
              HasSubstr("rank must be from 0 to 1 (num_replicas - 1), found 2"));
  EXPECT_THAT(refusal({.dataset_size = 5, .num_replicas = 2, .rank = -1}), HasSubstr("found -1"));
}

TEST(DistributedSampler, NextCutsThePassThatResetBegan) {
  DistributedSampler sampler({.dataset_size = 5, .shuffle = false});
  EXPECT_THAT(*sampler.next(2), ElementsAre(0U, 1U));
  EXPECT_THAT(*sampler.next(2), ElementsAre(2U, 3U));
  EXPECT_THAT(*sampler.next(2), ElementsAre(4U));
  EXPECT_FALSE(sampler.next(2).has_value());
  sampler.reset();
  EXPECT_THAT(*sampler.next(9), ElementsAre(0U, 1U, 2U, 3U, 4U));
  sampler.reset(3);
  EXPECT_EQ(sampler.size(), 3);
  EXPECT_THAT(*sampler.next(9), ElementsAre(0U, 1U, 2U));
  EXPECT_THROW(sampler.next(0), UsageError);
  EXPECT_THROW(sampler.reset(0), UsageError);
  EXPECT_EQ(sampler.size(), 3);
}

class Numbers : public torch::data::datasets::Dataset<Numbers, std::int64_t> {
 public:
  std::int64_t get(std::size_t index) override { return static_cast<std::int64_t>(index); }
  std::optional<std::size_t> size() const override { return 40; }
};

// The ids that a pass over the loader gives, in order.
template <class Loader>
std::vector<std::int64_t> pass(Loader& loader) {
  std::vector<std::int64_t> ids;
  for (auto& batch : loader) ids.insert(ids.end(), batch.begin(), batch.end());
  return ids;
}

// The loader takes a copy; set_epoch on ours must reach it (pytorch/pytorch#73141).
TEST(DistributedSampler, LoadersCopySharesTheEpoch) {
  for (const std::size_t workers : {0, 2}) {
    DistributedSampler sampler({.dataset_size = 40, .num_replicas = 2, .rank = 1, .seed = 1});
    auto loader = torch::data::make_data_loader(
        Numbers(), sampler,
        torch::data::DataLoaderOptions(8).workers(workers).enforce_ordering(true));
    const auto first = sampler.indices();
    EXPECT_EQ(pass(*loader), first);
    sampler.set_epoch(1);
    EXPECT_EQ(pass(*loader), sampler.indices());
    EXPECT_NE(sampler.indices(), first);
  }
}

std::stringstream saved(const DistributedSampler& sampler) {
  torch::serialize::OutputArchive archive;
  sampler.save(archive);
  std::stringstream stream;
  archive.save_to(stream);
  return stream;
}

void load_from(DistributedSampler& sampler, std::stringstream stream) {
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  sampler.load(archive);
}

TEST(DistributedSampler, SavedPositionGoesOnInTheSameOrder) {
  DistributedSampler sampler({.dataset_size = 40, .num_replicas = 2, .rank = 1, .seed = 1});
  sampler.set_epoch(3);
  sampler.reset();
  sampler.next(8);
  sampler.set_epoch(4);  // for the next pass, not for the one that is saved

  DistributedSampler resumed({.dataset_size = 40, .num_replicas = 2, .rank = 1, .seed = 1});
  load_from(resumed, saved(sampler));
  EXPECT_EQ(resumed.epoch(), 3);
  EXPECT_EQ(*resumed.next(99), *sampler.next(99));
}

// Whoever uses indices() or batches() never calls reset() or next().
TEST(DistributedSampler, SavesTheEpochThatWasSetWhereNoPassIsUnderWay) {
  DistributedSampler sampler({.dataset_size = 40, .num_replicas = 2});
  DistributedSampler resumed({.dataset_size = 40, .num_replicas = 2});
  sampler.set_epoch(5);
  sampler.batches(8);
  load_from(resumed, saved(sampler));
  EXPECT_EQ(resumed.epoch(), 5);
  EXPECT_EQ(resumed.next(99)->size(), 20u);

  sampler.reset();
  sampler.next(20);  // the whole pass
  load_from(resumed, saved(sampler));
  EXPECT_EQ(resumed.epoch(), 5);
  EXPECT_EQ(resumed.next(99), std::nullopt);
  sampler.set_epoch(6);
  load_from(resumed, saved(sampler));
  EXPECT_EQ(resumed.epoch(), 6);
  EXPECT_EQ(resumed.next(99)->size(), 20u);
}

TEST(DistributedSampler, RefusesAPositionOfAnotherCut) {
  const DistributedSampler sampler({.dataset_size = 40, .num_replicas = 2});
  DistributedSampler other({.dataset_size = 40, .num_replicas = 4});
  try {
    load_from(other, saved(sampler));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("saved with num_replicas 2, but this sampler has 4"));
  }
}

DistributedSampler sampler_of(int num_replicas, int rank, std::int64_t size = 37) {
  return DistributedSampler(
      {.dataset_size = size, .num_replicas = num_replicas, .rank = rank, .seed = 1});
}

// Everything that next() still gives, all ranks together.
std::multiset<std::size_t> rest(std::vector<DistributedSampler>& ranks) {
  std::multiset<std::size_t> ids;
  for (auto& sampler : ranks)
    while (const auto batch = sampler.next(4)) ids.insert(batch->begin(), batch->end());
  return ids;
}

// A job of `before` ranks saves after two batches of 4; one of `after` ranks gives the rest.
TEST(DistributedSampler, StateGoesOnWithAnyNumberOfRanks) {
  for (const int before : {1, 2, 3})
    for (const int after : {1, 2, 3, 4}) {
      std::multiset<std::size_t> seen;
      Value state;
      for (int rank = 0; rank < before; ++rank) {
        auto sampler = sampler_of(before, rank);
        sampler.set_epoch(5);
        sampler.reset();
        for (int i = 0; i < 2; ++i) {
          const auto batch = *sampler.next(4);
          seen.insert(batch.begin(), batch.end());
        }
        state = sampler.state_dict();
      }
      EXPECT_EQ(state.at("samples").as_int(), 8 * before);
      std::vector<DistributedSampler> ranks;
      for (int rank = 0; rank < after; ++rank) {
        ranks.push_back(sampler_of(after, rank));
        ranks.back().load_state_dict(state);
        EXPECT_EQ(ranks.back().epoch(), 5);
      }
      seen.merge(rest(ranks));
      const auto left = 37 - 8 * before;
      const auto padding = static_cast<std::size_t>((after - left % after) % after);
      EXPECT_EQ(seen.size(), 37 + padding) << before << " to " << after;
      for (std::size_t id = 0; id < 37; ++id) EXPECT_GE(seen.count(id), 1u) << id;
    }
}

TEST(DistributedSampler, LoadedPositionIsTheLoadersFirstPassOnly) {
  auto sampler = sampler_of(2, 1, 40);
  sampler.reset();
  sampler.next(8);
  auto resumed = sampler_of(2, 1, 40);
  resumed.load_state_dict(sampler.state_dict());
  auto loader =
      torch::data::make_data_loader(Numbers(), resumed, torch::data::DataLoaderOptions(8));
  const auto whole = sampler.indices();
  EXPECT_EQ(pass(*loader), std::vector<std::int64_t>(whole.begin() + 8, whole.end()));
  EXPECT_EQ(pass(*loader), whole);
  // Another epoch is begun from its start.
  resumed.load_state_dict(sampler.state_dict());
  resumed.set_epoch(1);
  resumed.reset();
  EXPECT_EQ(resumed.next(99)->size(), 20u);
  // A position kept in a second state is that of the whole epoch.
  resumed.load_state_dict(sampler.state_dict());
  resumed.next(4);
  EXPECT_EQ(resumed.state_dict().at("samples").as_int(), 24);
}

TEST(DistributedSampler, RefusesAStateOfOtherData) {
  auto sampler = sampler_of(2, 0);
  const auto refusal = [&](const char* key, Value value) {
    auto state = sampler.state_dict();
    state.as_dict()[key] = std::move(value);
    return lockstep::refusal([&] { sampler_of(2, 0).load_state_dict(state); });
  };
  EXPECT_THAT(refusal("seed", 2), HasSubstr("saved with seed 2, but this sampler has 1"));
  EXPECT_THAT(refusal("shuffle", false), HasSubstr("shuffle false"));
  EXPECT_THAT(refusal("dataset_size", 38), HasSubstr("dataset_size 38"));
  EXPECT_THAT(refusal("samples", 39), HasSubstr("found 39"));
  EXPECT_THAT(refusal("samples", -1), HasSubstr("found -1"));
  EXPECT_THAT(refusal("samples", "x"), HasSubstr("expected an int"));
  EXPECT_EQ(refusal("samples", 38), "");  // of two ranks that padded 37
}

}  // namespace
}  // namespace lockstep
