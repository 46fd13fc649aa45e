// CheckedBackend: right programs run as they do without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/record/failed_collective.h>

#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "checked_job.h"
#include "recorded_job.h"

namespace lockstep::test {
namespace {

class CheckedBackend : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(WorldSizes, CheckedBackend, ::testing::Values(2, 3, 4),
                         ::testing::PrintToStringParamName());

at::Tensor full(std::int64_t size, double value) {
  return torch::full({size}, value, torch::kFloat32);
}

// Sum of 1..W.
double sum_of_ranks(int world_size) {
  return world_size * (world_size + 1) / 2.0;
}

TEST_P(CheckedBackend, WholeTensors) {
  const int world_size = GetParam();
  CheckedJob job(world_size);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    const auto backend = group->getDefaultBackend();
    const int rank = group->getRank(), last = world_size - 1;
    const auto mine = [&](std::int64_t size) { return full(size, rank + 1); };
    const auto sum = sum_of_ranks(world_size);

    auto tensor = mine(3);
    all_reduce(*group, tensor);
    EXPECT_TRUE(tensor.equal(full(3, sum)));
    tensor = mine(3);
    broadcast(*group, tensor, last);
    EXPECT_TRUE(tensor.equal(full(3, world_size)));

    Tensors reduced{mine(3)};
    c10d::ReduceOptions to_last;
    to_last.rootRank = last;
    backend->reduce(reduced, to_last)->wait();
    if (rank == last) {
      EXPECT_TRUE(reduced[0].equal(full(3, sum)));
    }

    Tensors two{mine(2), mine(5)};
    backend->allreduce_coalesced(two, {})->wait();
    EXPECT_TRUE(two[1].equal(full(5, sum)));

    Tensors inputs{mine(2), mine(3)};
    std::vector<Tensors> of_ranks(static_cast<std::size_t>(world_size));
    for (auto& list : of_ranks) list = {torch::zeros({2}), torch::zeros({3})};
    backend->allgather_coalesced(of_ranks, inputs, {})->wait();
    EXPECT_TRUE(of_ranks.back()[1].equal(full(3, world_size)));

    Tensors wholes{torch::zeros({2 * world_size}), torch::zeros({3 * world_size})};
    backend->allgather_into_tensor_coalesced(wholes, inputs, {})->wait();
    EXPECT_TRUE(wholes[1].narrow(0, 3 * last, 3).equal(full(3, world_size)));

    auto to_scatter = mine(2 * world_size), part = torch::zeros({2});
    backend->_reduce_scatter_base(part, to_scatter, {})->wait();
    EXPECT_TRUE(part.equal(full(2, sum)));
    Tensors shards{torch::zeros({2})}, sources{to_scatter};
    backend->reduce_scatter_tensor_coalesced(shards, sources, {})->wait();
    EXPECT_TRUE(shards[0].equal(part));

    // Their entries stand in different places; the last rank has none.
    const std::int64_t entries = rank == last ? 0 : 1;
    Tensors sparse{torch::sparse_coo_tensor(torch::full({1, entries}, rank, torch::kInt64),
                                            torch::ones({entries}), {4}, torch::kFloat32)};
    const auto work = backend->allreduce_sparse(sparse, {});
    work->wait();
    EXPECT_EQ(work->result().at(0).to_dense().sum().item<int>(), world_size - 1);

    barrier(*group);
    backend->monitoredBarrier({}, false);
  });
}

TEST_P(CheckedBackend, PartsByRank) {
  const int world_size = GetParam();
  CheckedJob job(world_size);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    const auto backend = group->getDefaultBackend();
    const int rank = group->getRank();
    const auto value = static_cast<float>(rank + 1);

    EXPECT_TRUE(all_gather(*group, full(3, value)).back().equal(full(3, world_size)));
    Tensors mine{full(3, value)}, received{torch::zeros({3})};
    std::vector<Tensors> at_root;
    if (rank == 0) at_root = {Tensors()};
    for (int i = 0; rank == 0 && i < world_size; ++i) at_root[0].push_back(torch::zeros({3}));
    backend->gather(at_root, mine, {})->wait();
    if (rank == 0) {
      EXPECT_TRUE(at_root[0].back().equal(full(3, world_size)));
    }
    backend->scatter(received, at_root, {})->wait();
    EXPECT_TRUE(received[0].equal(full(3, value)));

    std::vector<Tensors> pieces(1);
    for (int i = 0; i < world_size; ++i) pieces[0].push_back(full(3, value));
    backend->reduce_scatter(received, pieces, {})->wait();
    EXPECT_TRUE(received[0].equal(full(3, sum_of_ranks(world_size))));

    std::vector<std::int64_t> even;
    auto input = full(2 * world_size, value), output = torch::zeros({2 * world_size});
    backend->alltoall_base(output, input, even, even, {})->wait();
    EXPECT_TRUE(output.narrow(0, 2 * rank, 2).equal(full(2, value)));

    // Rank r sends r + 1 rows of two to rank 0, and one to the others.
    std::vector<std::int64_t> in(static_cast<std::size_t>(world_size), 1), out = in;
    in[0] = rank + 1;
    for (int from = 0; rank == 0 && from < world_size; ++from)
      out[static_cast<std::size_t>(from)] = from + 1;
    const auto rows = [](const std::vector<std::int64_t>& splits) {
      std::int64_t sum = 0;
      for (const auto split : splits) sum += split;
      return sum;
    };
    input = torch::full({rows(in), 2}, value), output = torch::zeros({rows(out), 2});
    backend->alltoall_base(output, input, out, in, {})->wait();
    EXPECT_TRUE(output[rows(out) - 1].equal(full(2, world_size)));
  });
}

TEST_P(CheckedBackend, WorksThatAreWaitedForLater) {
  CheckedJob job(GetParam());
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    Tensors tensors;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 50; ++i) {
      tensors.push_back(torch::ones({1 + i % 7}));
      works.push_back(all_reduce_of(*group->getDefaultBackend(), tensors.back()));
    }
    for (const auto& work : works) work->wait();
    for (const auto& tensor : tensors) EXPECT_EQ(tensor[0].item<int>(), GetParam());
  });
}

// To the next rank and from the one before, in every order in which the four calls may stand.
TEST_P(CheckedBackend, SendAndReceiveInEveryOrder) {
  const int world_size = GetParam();
  CheckedJob job(world_size);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    auto& backend = *group->getDefaultBackend();
    const int rank = group->getRank(), next = (rank + 1) % world_size,
              previous = (rank + world_size - 1) % world_size;
    for (const bool receive_first : {false, true})
      for (const bool wait_for_receive_first : {false, true}) {
        auto got = torch::zeros({3});
        WorkPtr sent, received;
        if (receive_first) received = receive_from(backend, got, previous, 1);
        sent = send_to(backend, full(3, rank), next, 1);
        if (!receive_first) received = receive_from(backend, got, previous, 1);
        (wait_for_receive_first ? received : sent)->wait();
        (wait_for_receive_first ? sent : received)->wait();
        EXPECT_TRUE(got.equal(full(3, previous)));
        EXPECT_EQ(received->sourceRank(), previous);
      }
    barrier(*group);
  });
}

TEST(CheckedPeers, TagsOutOfOrderAndManyOfOneTag) {
  CheckedJob job(2);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    auto& backend = *group->getDefaultBackend();
    Tensors tensors;
    std::vector<WorkPtr> works;
    if (group->getRank() == 0) {
      for (const int tag : {1, 2})
        works.push_back(send_to(backend, tensors.emplace_back(full(3, tag)), 1, tag));
      for (int i = 0; i < 20; ++i)
        works.push_back(send_to(backend, tensors.emplace_back(full(1 + i, i)), 1, 7));
      for (const auto& work : works) work->wait();
      return;
    }
    auto one = torch::zeros({3}), two = torch::zeros({3});
    receive_from(backend, two, 0, 2)->wait();
    receive_from(backend, one, 0, 1)->wait();
    EXPECT_TRUE(one.equal(full(3, 1)) && two.equal(full(3, 2)));
    for (int i = 0; i < 20; ++i)
      works.push_back(receive_from(backend, tensors.emplace_back(torch::zeros({1 + i})), 0, 7));
    for (const auto& work : works) work->wait();
    for (int i = 0; i < 20; ++i)
      EXPECT_TRUE(tensors[static_cast<std::size_t>(i)].equal(full(1 + i, i))) << i;
  });
}

TEST(CheckedPeers, ReceiveFromAnyone) {
  CheckedJob job(3);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    auto& backend = *group->getDefaultBackend();
    const int rank = group->getRank();
    if (rank != 0) return void(send_to(backend, full(2, rank), 0, 3)->wait());
    int seen = 0;
    for (int i = 0; i < 2; ++i) {
      Tensors tensors{torch::zeros({2})};
      const auto work = backend.recvAnysource(tensors, 3);
      work->wait();
      EXPECT_TRUE(tensors[0].equal(full(2, work->sourceRank())));
      seen += work->sourceRank();
    }
    EXPECT_EQ(seen, 3);
  });
}

TEST(CheckedPeers, ATagThatIsTooLargeIsRefused) {
  CheckedJob job(2);
  run_thread_ranks(job.options, [](ProcessGroupPtr group) {
    EXPECT_TRUE(thrown_by<UsageError>(
        [&] { send_to(*group->getDefaultBackend(), torch::ones({1}), 0, 1 << 30); }));
  });
}

// A part of the group is checked with numbers of its own, while the rest goes on.
TEST(CheckedGroups, APartOfTheGroupIsCheckedToo) {
  CheckedJob job(3);
  run_thread_ranks(job.options, [](ProcessGroupPtr group) {
    const auto backend = group->getDefaultBackend();
    const auto store = c10::make_intrusive<c10d::PrefixStore>("part", group->getStore());
    const auto options = backend->getBackendOptions();
    options->global_ranks_in_group = {0, 1, 2};  // unset in all but a process's first group
    const auto part = backend->split(store, {0, 2}, options);
    ASSERT_EQ(part == nullptr, group->getRank() == 1);
    if (part) {
      auto tensor = torch::ones({2});
      all_reduce_of(*part, tensor)->wait();
      EXPECT_EQ(tensor[0].item<int>(), 2);
      const auto error = thrown_by<record::CollectiveMismatch>(
          [&] { broadcast_of(*part, tensor, part->getRank()); });
      EXPECT_EQ(error->sequence, 2);
      EXPECT_THAT(error->ranks, ::testing::ElementsAre(0, 1));  // as the part numbers them
    }
    barrier(*group);
  });
}

TEST(CheckedGroups, OneRankAloneIsHandedBack) {
  run_thread_ranks(1, [](ProcessGroupPtr group) {
    const auto backend = group->getDefaultBackend();
    EXPECT_EQ(record::check(backend, group->getStore()), backend);
  });
}

TEST(CheckedGroups, AStoreServesOneGroup) {
  CheckedJob job(2);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    EXPECT_TRUE(
        thrown_by<UsageError>([&] { record::check(group->getDefaultBackend(), job.store); }));
  });
}

// Around it, the trace tells of what was refused.
TEST(CheckedGroups, ObservedFromOutside) {
  RecordJob recorded(2);
  CheckedJob job(2);
  const auto observe = recorded.options.decorate, check = job.options.decorate;
  job.options.decorate = [&](BackendPtr backend, const StorePtr& store) {
    return observe(check(std::move(backend), store), store);
  };
  run_thread_ranks(job.options, [](ProcessGroupPtr group) {
    const int rank = group->getRank();
    auto& backend = *group->getDefaultBackend();
    std::optional<record::FailedCollective> failed;
    try {
      broadcast_of(backend, torch::ones({3}), rank);
    } catch (const record::CollectiveMismatch&) {
      failed = record::failed_collective_of(std::current_exception());
    }
    ASSERT_TRUE(failed);
    EXPECT_EQ(failed->operation, "broadcast");
    EXPECT_EQ(failed->sequence, 2);
    auto got = torch::zeros({3});
    const auto work =
        rank == 0 ? send_to(backend, torch::ones({3}), 1, 0) : receive_from(backend, got, 0, 0);
    work->wait();
    if (rank == 1) {
      EXPECT_EQ(got.sum().item<int>(), 3);
    }
  });
  const auto calls = recorded.collectives(1);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].failed, 1);
  EXPECT_EQ(calls[1].op, "recv");
  EXPECT_EQ(calls[1].failed, 0);
}

class CheckedDdp : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(WorldSizes, CheckedDdp, ::testing::Values(2, 4),
                         ::testing::PrintToStringParamName());

TEST_P(CheckedDdp, TrainsToTheSameBits) {
  const auto no_probes = [](int) { return std::make_unique<record::Probes>(nullptr); };
  const auto plain = train_ddp({.world_size = GetParam()}, 30, no_probes);
  CheckedJob job(GetParam());
  const auto checked = train_ddp(job.options, 30, no_probes);
  ASSERT_EQ(plain.values.size(), 34u);  // 30 losses, 4 parameters
  EXPECT_TRUE(identical(plain.values, checked.values));
}

// Rank 1 reduces something of its own before backward: what backward() throws says so.
TEST(CheckedBackward, AMismatchComesOutOfBackwardOnEveryRank) {
  CheckedJob job(2);
  run_thread_ranks(job.options, [](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(make_mlp(), group);
    for (int step = 0; step < 2; ++step)
      model(inputs_of(group->getRank())).square().mean().backward();
    const auto loss = model(inputs_of(group->getRank())).square().mean();
    auto mine = torch::ones({3});
    const auto error = thrown_by<record::CollectiveMismatch>([&] {
      if (group->getRank() == 1) all_reduce(*group, mine);
      loss.backward();
    });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), ::testing::HasSubstr("rank 1: allreduce sum float32 [3]"));
    EXPECT_THAT(error->what(), ::testing::HasSubstr("rank 0: allreduce sum float32 [51]"));
  });
}

}  // namespace
}  // namespace lockstep::test
