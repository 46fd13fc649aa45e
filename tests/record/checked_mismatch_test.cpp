// CheckedBackend: every way in which ranks can call different things is named on all of them, and
// nothing has been touched.
#include <functional>
#include <optional>

#include "checked_job.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// `data` is six floats r + 1, six int32 7, six floats 0. The call starts something with them.
struct MismatchCase {
  std::string name;
  int world_size;
  std::function<WorkPtr(c10d::Backend&, int rank, const Tensors& data)> call;
  std::string operation;          // that rank 1 is told of
  std::vector<int> ranks;         // that are named
  std::vector<std::string> said;  // in every rank's message
};

Tensors thirds(const at::Tensor& six) {
  return {six.narrow(0, 0, 2), six.narrow(0, 2, 2), six.narrow(0, 4, 2)};
}

WorkPtr all_to_all_of(c10d::Backend& backend, at::Tensor output, at::Tensor input,
                      std::vector<std::int64_t> output_splits,
                      std::vector<std::int64_t> input_splits) {
  return backend.alltoall_base(output, input, output_splits, input_splits, {});
}

std::vector<MismatchCase> whole_tensor_cases() {
  return {
      {"OtherOperation",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         return rank == 1 ? broadcast_of(backend, data[0], 0) : all_reduce_of(backend, data[0]);
       },
       "broadcast",
       {1},
       {"rank 1: broadcast float32 [6] root 0", "ranks 0 and 2: allreduce sum float32 [6]"}},
      {"OtherReduceOp",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         return all_reduce_of(backend, data[0],
                              rank == 1 ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM);
       },
       "allreduce",
       {1},
       {"rank 1: allreduce max float32 [6]", "ranks 0 and 2: allreduce sum float32 [6]"}},
      {"OtherRoot",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         return broadcast_of(backend, data[0], rank == 1 ? 1 : 0);
       },
       "broadcast",
       {1},
       {"rank 1: broadcast float32 [6] root 1", "ranks 0 and 2: broadcast float32 [6] root 0"}},
      {"SmallerBuffer",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         return all_reduce_of(backend, rank == 1 ? data[0].narrow(0, 0, 4) : data[0]);
       },
       "allreduce",
       {1},
       {"rank 1: allreduce sum float32 [4]", "ranks 0 and 2: allreduce sum float32 [6]"}},
      {"SmallerBufferAtTheRoot",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         return broadcast_of(backend, rank == 0 ? data[0].narrow(0, 0, 4) : data[0], 0);
       },
       "broadcast",
       {0},
       {"rank 0: broadcast float32 [4] root 0", "ranks 1 and 2: broadcast float32 [6] root 0"}},
      {"OtherShape",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         return all_reduce_of(backend, rank == 1 ? data[0].view({2, 3}) : data[0]);
       },
       "allreduce",
       {1},
       {"rank 1: allreduce sum float32 [2, 3]"}},
      {"SameBytesOtherDtype",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         return all_reduce_of(backend, rank == 1 ? data[1] : data[0]);
       },
       "allreduce",
       {1},
       {"rank 1: allreduce sum int32 [6]", "ranks 0 and 2: allreduce sum float32 [6]"}},
      {"FewerTensorsInOne",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         Tensors tensors{data[0], data[1]};
         if (rank == 1) tensors.pop_back();
         return backend.allreduce_coalesced(tensors, {});
       },
       "allreduce_coalesced",
       {1},
       {"rank 1: allreduce_coalesced sum float32 [6] in",
        "ranks 0 and 2: allreduce_coalesced sum float32 [6] int32 [6]"}},
      {"SmallerOutput",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         auto input = data[0].narrow(0, 0, 2);
         auto output = rank == 1 ? data[2].narrow(0, 0, 4) : data[2];
         return backend._allgather_base(output, input, {});
       },
       "_allgather_base",
       {1},
       {"rank 1: _allgather_base float32 [2] to float32 [4]"}},
      {"OtherGroup",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         if (rank == 1) backend.setGroupUid("other");
         auto work = [&] { return all_reduce_of(backend, data[0]); };
         try {
           return work();
         } catch (...) {
           backend.setGroupUid("0");
           throw;
         }
       },
       "allreduce",
       {1},
       {"rank 1: allreduce sum float32 [6] in group other", "in group 0"}},
      {"TwoRanksHaveNoGuiltySide",
       2,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         return all_reduce_of(backend, data[static_cast<std::size_t>(rank)]);
       },
       "allreduce",
       {0, 1},
       {"rank 0: allreduce sum float32 [6]", "rank 1: allreduce sum int32 [6]"}},
      {"TwoAgainstTwo",
       4,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         return all_reduce_of(backend, data[static_cast<std::size_t>(rank % 2)]);
       },
       "allreduce",
       {0, 1, 2, 3},
       {"ranks 0 and 2: allreduce sum float32 [6]", "ranks 1 and 3: allreduce sum int32 [6]"}},
      {"NoTwoAlike",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         return all_reduce_of(backend, data[0].narrow(0, 0, 3 + rank));
       },
       "allreduce",
       {0, 1, 2},
       {"rank 0: allreduce sum float32 [3]", "rank 1: allreduce sum float32 [4]",
        "rank 2: allreduce sum float32 [5]"}},
  };
}

std::vector<MismatchCase> part_cases() {
  return {
      {"AllGatherOfASmallerInput",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         return all_gather_of(backend, data[0].narrow(0, 0, rank == 1 ? 1 : 2), thirds(data[2]));
       },
       "allgather",
       {1},
       {"rank 1 sends 1 x float32 to rank 0, which expects 2 x float32",
        "rank 1 sends 1 x float32 to rank 2"}},
      {"AllGatherWithoutRoomForOne",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         auto outputs = thirds(data[2]);
         if (rank == 1) outputs[2] = outputs[2].narrow(0, 0, 1);
         return all_gather_of(backend, data[0].narrow(0, 0, 2), outputs);
       },
       "allgather",
       {1, 2},
       {"rank 2 sends 2 x float32 to rank 1, which expects 1 x float32"}},
      {"AllGatherOfTooFew",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         auto outputs = thirds(data[2]);
         if (rank == 1) outputs.pop_back();
         return all_gather_of(backend, data[0].narrow(0, 0, 2), outputs);
       },
       "allgather",
       {1, 2},
       {"rank 2 sends 2 x float32 to rank 1, which expects nothing"}},
      {"AllToAllSplits",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         // Rank r sends 1, 2 and 3 rows; rank 1 takes three of each where it gets two.
         const std::int64_t rows = rank + 1;
         if (rank == 1)
           return all_to_all_of(backend, torch::zeros({9}), data[0], {3, 3, 3}, {1, 2, 3});
         return all_to_all_of(backend, torch::zeros({3 * rows}), data[0], {rows, rows, rows},
                              {1, 2, 3});
       },
       "alltoall_base",
       {1},
       {"rank 0 sends 2 x float32 to rank 1, which expects 3 x float32",
        "rank 2 sends 2 x float32 to rank 1"}},
      {"AllToAllOfLists",
       3,  // which Gloo does not have: nothing gets that far
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         Tensors inputs = thirds(data[0]), outputs = thirds(data[rank == 1 ? 1 : 2]);
         return backend.alltoall(outputs, inputs, {});
       },
       "alltoall",
       {1},
       {"rank 0 sends 2 x float32 to rank 1, which expects 2 x int32"}},
      {"AllToAllSplitsThatLeaveARowOut",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         const std::int64_t last = rank == 1 ? 1 : 2;
         return all_to_all_of(backend, data[2], data[0], {2, 2, 2}, {2, 2, last});
       },
       "alltoall_base",
       {1},
       {"rank 1: alltoall_base with input splits that sum to 5 of 6 rows"}},
      {"GatherWithoutRoom",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         Tensors input{data[0].narrow(0, 0, 2)};
         std::vector<Tensors> outputs;
         if (rank == 0) outputs = {thirds(data[2])};
         if (rank == 0) outputs[0][1] = outputs[0][1].narrow(0, 0, 1);
         return backend.gather(outputs, input, {});
       },
       "gather",
       {0, 1},
       {"rank 1 sends 2 x float32 to rank 0, which expects 1 x float32"}},
      {"ScatterIntoASmallerBuffer",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         Tensors output{data[2].narrow(0, 0, rank == 1 ? 1 : 2)};
         std::vector<Tensors> inputs;
         if (rank == 0) inputs = {thirds(data[0])};
         return backend.scatter(output, inputs, {});
       },
       "scatter",
       {0, 1},
       {"rank 0 sends 2 x float32 to rank 1, which expects 1 x float32"}},
      {"ReduceScatterOfOtherParts",
       3,
       [](c10d::Backend& backend, int rank, const Tensors& data) {
         Tensors output{data[2].narrow(0, 0, rank == 1 ? 1 : 2)};
         std::vector<Tensors> inputs{thirds(data[0])};
         return backend.reduce_scatter(output, inputs, {});
       },
       "reduce_scatter",
       {1},
       {"rank 0 sends 2 x float32 to rank 1, which expects 1 x float32"}},
  };
}

class CheckedMismatch : public ::testing::TestWithParam<MismatchCase> {};

TEST_P(CheckedMismatch, IsNamedOnEveryRankBeforeAnythingIsTouched) {
  const auto& param = GetParam();
  CheckedJob job(param.world_size);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    const int rank = group->getRank();
    auto& backend = *group->getDefaultBackend();
    const Tensors data{torch::full({6}, rank + 1.0F), torch::full({6}, 7, torch::kInt32),
                       torch::zeros({6})};
    Tensors before;
    for (const auto& tensor : data) before.push_back(tensor.clone());

    const auto error =
        thrown_by<record::CollectiveMismatch>([&] { param.call(backend, rank, data)->wait(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks, ElementsAreArray(param.ranks));
    EXPECT_EQ(error->rank, rank);
    EXPECT_EQ(error->sequence, 2);
    if (rank == 1) {
      EXPECT_EQ(error->operation, param.operation);
    }
    for (const auto& text : param.said) EXPECT_THAT(error->what(), HasSubstr(text));
    for (std::size_t i = 0; i < data.size(); ++i) EXPECT_TRUE(data[i].equal(before[i])) << i;

    // The group is as it was.
    auto ones = torch::ones({3});
    all_reduce(*group, ones);
    EXPECT_EQ(ones[0].item<int>(), param.world_size);
  });
}

const auto kName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Whole, CheckedMismatch, ::testing::ValuesIn(whole_tensor_cases()), kName);
INSTANTIATE_TEST_SUITE_P(Parts, CheckedMismatch, ::testing::ValuesIn(part_cases()), kName);

// What rank 0 sends to rank 1, and what that receives into.
struct PeerCase {
  std::string name;
  at::Tensor sent, received;
  std::string said;
};

class CheckedPeerMismatch : public ::testing::TestWithParam<PeerCase> {};

TEST_P(CheckedPeerMismatch, IsNamedOnBothSidesBeforeAnythingIsTouched) {
  const auto& param = GetParam();
  CheckedJob job(3);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    const int rank = group->getRank();
    auto& backend = *group->getDefaultBackend();
    if (rank == 2) return;
    const auto before = param.received.clone();
    const auto work = rank == 0 ? send_to(backend, param.sent, 1, 4)
                                : receive_from(backend, param.received, 0, 4);
    const auto error = thrown_by<record::CollectiveMismatch>([&] { work->wait(); });
    ASSERT_TRUE(error);
    EXPECT_TRUE(work->isCompleted());
    EXPECT_FALSE(work->isSuccess());
    EXPECT_THAT(error->ranks, ElementsAreArray({0, 1}));
    EXPECT_EQ(error->operation, rank == 0 ? "send" : "recv");
    EXPECT_EQ(error->sequence, 1);
    EXPECT_THAT(error->what(), HasSubstr(param.said));
    EXPECT_TRUE(param.received.equal(before));
    // The send that was begun stays: no more of this group.
    const auto after = thrown_by<CollectiveError>([&] { barrier(*group); });
    EXPECT_THAT(after->what(), HasSubstr("cannot be used any more, since " + param.said));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, CheckedPeerMismatch,
    ::testing::Values(
        PeerCase{"ReceiverTooSmall", torch::ones({6}), torch::zeros({4}),
                 "rank 0 sends 6 x float32 to rank 1, which expects 4 x float32 (tag 4)"},
        PeerCase{"SenderTooSmall", torch::ones({4}), torch::zeros({6}),
                 "rank 0 sends 4 x float32 to rank 1, which expects 6 x float32 (tag 4)"},
        PeerCase{"SameBytesOtherDtype", torch::ones({6}), torch::zeros({6}, torch::kInt32),
                 "rank 0 sends 6 x float32 to rank 1, which expects 6 x int32 (tag 4)"}),
    kName);

}  // namespace
}  // namespace lockstep::test
