// ObservedBackend: it changes nothing, and the trace tells what was called.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/record/failed_collective.h>

#include <algorithm>
#include <future>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "recorded_job.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using trace::Collective;

// Every field but the times.
auto is(const std::string& op, std::int64_t sequence, const std::string& reduce, std::int64_t root,
        const std::string& dtype, const std::vector<std::int64_t>& sizes) {
  return ::testing::AllOf(
      Field("op", &Collective::op, op), Field("sequence", &Collective::sequence, sequence),
      Field("group", &Collective::group, "0"), Field("reduce_op", &Collective::reduce_op, reduce),
      Field("root", &Collective::root, root), Field("dtype", &Collective::dtype, dtype),
      Field("sizes", &Collective::sizes, sizes), Field("failed", &Collective::failed, 0));
}

// ProcessGroup::barrier keeps its tensor in a static variable (torch 2.11), which ranks that are
// threads would assign at the same time.
void barrier_of(c10d::ProcessGroup& group) {
  group.getDefaultBackend()->barrier()->wait();
}

void expect_left_after_entered(const trace::ParticipantTrace& trace) {
  for (const auto& at : trace.all<Collective>())
    EXPECT_GT(at.left_ns, at.time_ns) << at.event->op << " " << at.event->sequence;
}

TEST(RecordBackend, WritesEveryCollectiveWithItsFields) {
  RecordJob job(2);
  run_thread_ranks(job.options, [](ProcessGroupPtr group) {
    auto a = torch::ones({3}), b = torch::ones({2, 4}, torch::kFloat64);
    all_reduce(*group, a, c10d::ReduceOp::MAX);
    broadcast(*group, b, 1);
    EXPECT_EQ(all_gather(*group, a).size(), 2u);
    std::vector<at::Tensor> inputs{torch::full({5}, group->getRank(), torch::kInt64)};
    std::vector<std::vector<at::Tensor>> outputs;
    if (group->getRank() == 0)
      outputs = {{torch::zeros_like(inputs[0]), torch::ones({5}).to(torch::kInt64)}};
    c10d::GatherOptions to_rank_0;
    group->gather(outputs, inputs, to_rank_0)->wait();
    if (group->getRank() == 0) {
      EXPECT_EQ(outputs[0][1][4].item<int>(), 1);
    }
    auto whole = torch::zeros({6});
    group->_allgather_base(whole, a)->wait();
    EXPECT_EQ(whole.sum().item<double>(), 6);
    barrier_of(*group);
    group->getDefaultBackend()->monitoredBarrier({}, false);
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(job.collectives(rank), ElementsAre(is("allreduce", 2, "max", -1, "float32", {3}),
                                                   is("broadcast", 3, "", 1, "float64", {8}),
                                                   is("allgather", 4, "", -1, "float32", {3}),
                                                   is("gather", 5, "", 0, "int64", {5}),
                                                   is("_allgather_base", 6, "", -1, "float32", {3}),
                                                   is("barrier", 7, "", -1, "", {}),
                                                   is("monitoredBarrier", 8, "", -1, "", {})));
    expect_left_after_entered(job.trace_of(rank));
  }
}

// Every other operation of Gloo, with results that tell a wrong argument; rank r's inputs hold r +
// 1.
TEST(RecordBackend, EveryOtherOperationOfGlooGivesItsResult) {
  RecordJob job(2);
  run_thread_ranks(job.options, [](ProcessGroupPtr group) {
    const auto backend = group->getDefaultBackend();
    const int rank = group->getRank();
    const auto mine = [&](std::int64_t size) { return torch::full({size}, rank + 1.0F); };

    std::vector<at::Tensor> tensors{mine(3)};
    c10d::ReduceOptions to_rank_1;
    to_rank_1.rootRank = 1;
    backend->reduce(tensors, to_rank_1)->wait();
    if (rank == 1) EXPECT_TRUE(tensors[0].equal(torch::full({3}, 3.0F)));

    std::vector<at::Tensor> received{torch::zeros({4})};
    std::vector<std::vector<at::Tensor>> parts;
    if (rank == 1) parts = {{torch::full({4}, 5.0F), torch::full({4}, 6.0F)}};
    c10d::ScatterOptions from_rank_1;
    from_rank_1.rootRank = 1;
    backend->scatter(received, parts, from_rank_1)->wait();
    EXPECT_TRUE(received[0].equal(torch::full({4}, 5.0F + static_cast<float>(rank))));

    auto input = mine(4), output = torch::zeros({4});
    std::vector<std::int64_t> even;
    backend->alltoall_base(output, input, even, even, {})->wait();
    EXPECT_TRUE(output.equal(torch::tensor({1.0F, 1.0F, 2.0F, 2.0F})));

    std::vector<at::Tensor> two{mine(2), mine(5)};
    backend->allreduce_coalesced(two, {})->wait();
    EXPECT_TRUE(two[1].equal(torch::full({5}, 3.0F)));

    std::vector<at::Tensor> inputs{mine(2), mine(3)};
    std::vector<std::vector<at::Tensor>> of_ranks(2);
    for (auto& list : of_ranks) list = {torch::zeros({2}), torch::zeros({3})};
    backend->allgather_coalesced(of_ranks, inputs, {})->wait();
    EXPECT_TRUE(of_ranks[1][1].equal(torch::full({3}, 2.0F)));

    std::vector<at::Tensor> wholes{torch::zeros({4}), torch::zeros({6})};
    backend->allgather_into_tensor_coalesced(wholes, inputs, {})->wait();
    EXPECT_TRUE(wholes[0].equal(torch::tensor({1.0F, 1.0F, 2.0F, 2.0F})));

    auto to_scatter = torch::arange(4, torch::kFloat32), part = torch::zeros({2});
    backend->_reduce_scatter_base(part, to_scatter, {})->wait();
    EXPECT_TRUE(part.equal(to_scatter.narrow(0, 2 * rank, 2) * 2));

    std::vector<at::Tensor> piece{torch::zeros({1})};
    std::vector<std::vector<at::Tensor>> pieces{{mine(1), mine(1) * 10}};
    backend->reduce_scatter(piece, pieces, {})->wait();
    EXPECT_TRUE(piece[0].equal(torch::full({1}, rank == 0 ? 3.0F : 30.0F)));

    std::vector<at::Tensor> shards{torch::zeros({2})}, sources{to_scatter};
    backend->reduce_scatter_tensor_coalesced(shards, sources, {})->wait();
    EXPECT_TRUE(shards[0].equal(part));

    // The sum of the ranks' sparse vectors, whose entries stand in different places.
    std::vector<at::Tensor> sparse{torch::sparse_coo_tensor(
        torch::full({1, 1}, rank, torch::kInt64), torch::ones({1}), {3}, torch::kFloat32)};
    const auto work = backend->allreduce_sparse(sparse, {});
    work->wait();
    EXPECT_TRUE(work->result().at(0).to_dense().equal(torch::tensor({1.0F, 1.0F, 0.0F})));
  });
  const std::string f = "float32";
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(job.collectives(rank),
                ElementsAre(is("reduce", 2, "sum", 1, f, {3}), is("scatter", 3, "", 1, f, {4}),
                            is("alltoall_base", 4, "", -1, f, {4}),
                            is("allreduce_coalesced", 5, "sum", -1, f, {2, 5}),
                            is("allgather_coalesced", 6, "", -1, f, {2, 3}),
                            is("allgather_into_tensor_coalesced", 7, "", -1, f, {2, 3}),
                            is("_reduce_scatter_base", 8, "sum", -1, f, {4}),
                            is("reduce_scatter", 9, "sum", -1, f, {1}),
                            is("reduce_scatter_tensor_coalesced", 10, "sum", -1, f, {4}),
                            is("allreduce_sparse", 11, "sum", -1, f, {3})));
    expect_left_after_entered(job.trace_of(rank));
  }
}

// A part of the group is a group of its own, with its own numbers; who is not in it gets nothing.
TEST(RecordBackend, AGroupSplitOffIsObservedToo) {
  RecordJob job(3);
  run_thread_ranks(job.options, [](ProcessGroupPtr group) {
    auto ones = torch::ones({3});
    all_reduce(*group, ones);
    const auto backend = group->getDefaultBackend();
    const auto store = c10::make_intrusive<c10d::PrefixStore>("part", group->getStore());
    const auto options = backend->getBackendOptions();
    options->global_ranks_in_group = {0, 1, 2};  // unset in all but a process's first group
    const auto part = backend->split(store, {0, 2}, options);
    ASSERT_EQ(part == nullptr, group->getRank() == 1);
    if (!part) return;
    part->setGroupUid("part");
    EXPECT_EQ(part->getSize(), 2);
    std::vector<at::Tensor> tensors{torch::ones({2})};
    part->allreduce(tensors, {})->wait();
    EXPECT_EQ(tensors[0][0].item<float>(), 2);
  });
  EXPECT_EQ(job.collectives(1).size(), 1u);
  const auto calls = job.collectives(2);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[1].group, "part");
  EXPECT_EQ(calls[1].sequence, 1);
  EXPECT_THAT(calls[1].sizes, ElementsAre(2));
}

// Two groups of one program, both called "0" as Python calls every program's first.
TEST(RecordBackend, GroupsOfOneTraceHaveNamesOfTheirOwn) {
  RecordJob job(2);
  const TemporaryFolder folder("lockstep-second");
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    const int rank = group->getRank();
    auto second = init_process_group({.init_method = "file://" + (folder.path() / "store").string(),
                                      .rank = rank,
                                      .world_size = 2,
                                      .local_rank = rank,
                                      .decorate = job.options.decorate});
    barrier(*second);
    barrier(*group);
    barrier(*second);
  });
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::pair<std::string, std::int64_t>> calls;
    for (const auto& call : job.collectives(rank)) calls.emplace_back(call.group, call.sequence);
    EXPECT_THAT(calls, ElementsAre(std::pair("0#2", 1), std::pair("0", 2), std::pair("0#2", 2)));
  }
}

TEST(RecordBackend, CountsSendAndReceiveApart) {
  RecordJob job(3);
  run_thread_ranks(job.options, [](ProcessGroupPtr group) {
    std::vector<at::Tensor> tensors{torch::full({7}, group->getRank())};
    if (group->getRank() == 0) group->send(tensors, 2, 5)->wait();
    if (group->getRank() == 2) {
      const auto work = group->recv(tensors, 0, 5);
      EXPECT_TRUE(work->wait());
      EXPECT_EQ(tensors[0].sum().item<int>(), 0);
    }
    barrier_of(*group);
  });
  const auto its_barrier = is("barrier", 2, "", -1, "", {});
  EXPECT_THAT(job.collectives(0), ElementsAre(is("send", 1, "", 2, "int64", {7}), its_barrier));
  EXPECT_THAT(job.collectives(1), ElementsAre(its_barrier));
  EXPECT_THAT(job.collectives(2), ElementsAre(is("recv", 1, "", 0, "int64", {7}), its_barrier));
  for (int rank = 0; rank < 3; ++rank) expect_left_after_entered(job.trace_of(rank));
}

TEST(RecordBackend, ReceiveFromAnyoneStillTellsTheSource) {
  RecordJob job(2);
  run_thread_ranks(job.options, [](ProcessGroupPtr group) {
    std::vector<at::Tensor> tensors{torch::ones({2})};
    if (group->getRank() == 1) {
      group->send(tensors, 0, 0)->wait();
      return;
    }
    const auto work = group->recvAnysource(tensors, 0);
    work->wait();
    EXPECT_EQ(work->sourceRank(), 1);
  });
  EXPECT_THAT(job.collectives(0), ElementsAre(is("recvAnysource", 1, "", -1, "float32", {2})));
}

TEST(RecordBackend, AnOperationStandsOpenWhileAPeerIsMissing) {
  RecordJob job(2);
  std::promise<void> looked;
  auto has_looked = looked.get_future();
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    std::vector<at::Tensor> tensors{torch::ones({3})};
    if (group->getRank() == 1) {
      ASSERT_EQ(has_looked.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    }
    const auto work = group->allreduce(tensors);
    if (group->getRank() == 0) {
      const auto seen = job.collectives(0);
      EXPECT_TRUE(job.collectives(1).empty());
      EXPECT_FALSE(work->isCompleted());
      looked.set_value();
      ASSERT_EQ(seen.size(), 1u);
      EXPECT_EQ(seen[0].left_ns, 0);
    }
    work->wait();
    EXPECT_NE(job.collectives(group->getRank()).at(0).left_ns, 0);  // before wait() returns
  });
}

TEST(RecordBackend, AFailedOperationIsLeftAsFailed) {
  RecordJob job(2);
  const auto thrown = try_thread_ranks(job.options, [](ProcessGroupPtr group) {
    auto tensor = torch::ones({3});
    if (group->getRank() == 0) all_reduce(*group, tensor);  // rank 1 goes away
  });
  EXPECT_TRUE(thrown[0]);
  const auto calls = job.collectives(0);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].failed, 1);
  EXPECT_GT(calls[0].left_ns, 0);
}

// DDP's backward hands the backend's own exception on, through autograd's threads; a program's main
// can still tell what it was.
TEST(RecordBackend, AnErrorOutOfBackwardIsKnownForTheCollectiveThatFailed) {
  EXPECT_FALSE(record::failed_collective_of(nullptr));
  RecordJob job(2);
  std::optional<record::FailedCollective> failed, unrelated;
  const auto thrown = try_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(make_mlp(), group);
    for (int step = 0; step < 2;
         ++step)  // the second one rebuilds the buckets, outside of backward
      model(inputs_of(group->getRank())).square().mean().backward();
    barrier(*group);
    if (group->getRank() == 1) return;  // goes away
    try {
      model(inputs_of(0)).square().mean().backward();
    } catch (const CollectiveError&) {
      throw;
    } catch (const std::exception&) {
      failed = record::failed_collective_of(std::current_exception());
    }
    try {
      throw std::runtime_error("of its own");
    } catch (const std::exception&) {
      unrelated = record::failed_collective_of(std::current_exception());
    }
  });
  if (thrown[0]) std::rethrow_exception(thrown[0]);
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->rank, 0);
  EXPECT_EQ(failed->group, "0");
  EXPECT_EQ(failed->operation, "allreduce");
  const auto calls = job.collectives(0);
  const auto first_failed = std::find_if(calls.begin(), calls.end(),
                                         [](const Collective& call) { return call.failed == 1; });
  ASSERT_NE(first_failed, calls.end());
  EXPECT_EQ(failed->sequence, first_failed->sequence);
  EXPECT_GT(failed->failed_ns, 0);
  EXPECT_EQ(record::last_failed_collective()->rank, 0);
  EXPECT_FALSE(unrelated);
}

TEST(RecordBackend, AFailedCallIsKnownByItsExceptionEvenAmongOthers) {
  RecordJob job(1);
  run_thread_ranks(job.options, [](ProcessGroupPtr group) {
    std::vector<std::exception_ptr> errors;
    for (int i = 0; i < 70; ++i) {
      std::vector<at::Tensor> of_two_types{torch::ones({3}), torch::ones({3}, torch::kInt64)};
      try {
        group->getDefaultBackend()->allreduce(of_two_types);
      } catch (const std::exception&) {
        errors.push_back(std::current_exception());
      }
    }
    ASSERT_EQ(errors.size(), 70u);
    EXPECT_FALSE(record::failed_collective_of(errors[5])) << "64 are kept";
    EXPECT_EQ(record::failed_collective_of(errors[6])->sequence, 8);  // after the opening barrier
    EXPECT_EQ(record::failed_collective_of(errors[69])->sequence, 71);
    EXPECT_EQ(record::last_failed_collective()->sequence, 71);
  });
}

TEST(RecordBackend, ARefusedCallIsLeftAsFailed) {
  RecordJob job(1);
  run_thread_ranks(job.options, [](ProcessGroupPtr group) {
    std::vector<at::Tensor> of_two_types{torch::ones({3}), torch::ones({3}, torch::kInt64)};
    EXPECT_ANY_THROW(group->getDefaultBackend()->allreduce(of_two_types));
  });
  EXPECT_EQ(job.collectives(0).at(0).failed, 1);
}

TEST(RecordBackend, PassesOnWhatTheGroupSets) {
  BackendPtr inner;
  RecordJob job(1);
  job.options.decorate = [&](BackendPtr backend, const StorePtr&) {
    inner = backend;
    return record::observe(std::move(backend), job.writer(0));
  };
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    EXPECT_EQ(inner->getGroupUid(), "0");
    group->setGroupDesc("a description");
    barrier_of(*group);
    EXPECT_EQ(inner->getGroupDesc(), "a description");
    const auto outer = group->getDefaultBackend();
    EXPECT_EQ(outer->getBackendName(), "gloo");
    EXPECT_EQ(outer->getSequenceNumberForGroup(), inner->getSequenceNumberForGroup());
    EXPECT_EQ(outer->getBackendOptions().get(), inner->getBackendOptions().get());
  });
}

class RecordBackendDdp : public ::testing::TestWithParam<int> {};

// The Reducer calls broadcast (construction, rebuilt buckets) and allreduce (gradients); its
// buckets are named here by their sizes alone.
TEST_P(RecordBackendDdp, TrainsToTheSameBitsAndEveryRankCallsTheSame) {
  const int world_size = GetParam();
  const auto no_probes = [](int) { return std::make_unique<record::Probes>(nullptr); };
  const auto plain = train_ddp({.world_size = world_size}, 30, no_probes);
  RecordJob job(world_size);
  const auto observed = train_ddp(job.options, 30, no_probes);
  ASSERT_EQ(plain.values.size(), 34u);  // 30 losses, 4 parameters
  EXPECT_TRUE(identical(plain.values, observed.values));

  const auto calls = job.collectives(0);
  const auto reductions = std::count_if(calls.begin(), calls.end(), [](const Collective& call) {
    return call.op == "allreduce" &&
           call.sizes == std::vector<std::int64_t>{12 * 24 + 24 + 24 * 4 + 4};
  });
  EXPECT_EQ(reductions, 30);
  for (int rank = 0; rank < world_size; ++rank) {
    expect_left_after_entered(job.trace_of(rank));
    const auto others = job.collectives(rank);
    ASSERT_EQ(others.size(), calls.size());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(others[i].sequence, static_cast<std::int64_t>(i + 2));
      EXPECT_EQ(others[i].op, calls[i].op);
      EXPECT_EQ(others[i].sizes, calls[i].sizes);
      EXPECT_EQ(others[i].failed, 0);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(WorldSizes, RecordBackendDdp, ::testing::Values(2, 4),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace lockstep::test
