// NCCL: communicators that do not block, their all-reduce, and their ends. What is done in the background, the call's
// answers and the order of an abort are those of NCCL 2.28 (src/group.cc, src/init.cc).
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "device.h"
#include "meeting.h"

using namespace pretended;

struct ncclComm {
  std::unique_ptr<Meeting> meeting;
  std::atomic<ncclResult_t> state{ncclSuccess};
  std::thread job;  // what was called last
  long begun = 0;   // all-reduces
  cudaStream_t stream = nullptr;
  MarkPtr last;  // the end of the last one
  bool finalized = false;

  // In the background: the state is ncclInProgress until it is done, or something fails.
  template <class Job>
  ncclResult_t start(Job work) {
    if (job.joinable()) job.join();
    state = ncclInProgress;
    job = std::thread([this, work] {
      auto before = ncclInProgress;
      state.compare_exchange_strong(before, work());
    });
    return ncclInProgress;
  }
};

namespace {

thread_local int group_depth = 0;
thread_local std::vector<ncclComm_t> ending;  // when the group ends

// NCCL tells apart GPUs by host, which NCCL_HOSTID names.
std::string place() {
  const char* host = std::getenv("NCCL_HOSTID");
  return std::to_string(current_device()) + " of " + (host != nullptr ? host : "this machine");
}

// From 2.30 on NCCL can be told that ranks share a GPU.
bool may_share() {
  const char* told = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0) && told != nullptr && std::string(told) == "1";
}

// A communicator that is at work may not be used, but for ncclCommAbort().
ncclResult_t ready(ncclComm_t comm) {
  const ncclResult_t state = comm->state;
  return state == ncclInProgress ? ncclInvalidArgument : state;
}

// What they have on the GPU is freed, which waits for the device: for the kernels of all communicators.
void free_all(std::vector<ncclComm_t> comms) {
  for (auto* comm : comms) {
    wait_for_device();
    delete comm;
    --counts().communicators;
  }
}

ncclResult_t end(ncclComm_t comm) {
  if (comm->job.joinable()) comm->job.join();
  ending.push_back(comm);
  if (group_depth == 0) free_all(std::exchange(ending, {}));
  return ncclSuccess;
}

// By a stream: reads when the stream comes to it, and holds the stream until all have come. Where a peer fails, the
// state tells, and nothing else.
void run_all_reduce(ncclComm& comm, long number, const void* from, void* to, std::size_t count) {
  const auto bytes = count * sizeof(float);
  if (is_to_fail("peer")) {
    comm.state = ncclRemoteError;
    comm.meeting->wait_until_given_up();
  }
  comm.meeting->sum(number, reinterpret_cast<const float*>(memory_of(from, bytes)),
                    reinterpret_cast<float*>(memory_of(to, bytes)), count);
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  Meeting::make().copy(id->internal, sizeof(id->internal) - 1);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (group_depth > 0 || config == nullptr || config->blocking != 0)
    refuse("only communicators that do not block are pretended, made outside of a group");
  *comm = new ncclComm;
  ++counts().communicators;
  (*comm)->meeting = std::make_unique<Meeting>(id.internal, rank, size);
  return (*comm)->start([&meeting = *(*comm)->meeting, at = place()] {
    if (!meeting.join(at)) return ncclSystemError;
    return meeting.has_same_place_twice() && !may_share() ? ncclInvalidUsage : ncclSuccess;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->state;
  return ncclSuccess;
}

// The first one also connects the ranks, before it gives the stream anything.
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (group_depth > 0 || type != ncclFloat || op != ncclSum)
    refuse("only sums of floats are pretended, outside of a group");
  if (const auto state = ready(comm); state != ncclSuccess) return state;
  if (is_to_fail("ncclAllReduce")) return ncclSystemError;
  if (comm->begun > 0 && comm->stream != stream)
    refuse("a communicator on several streams is not pretended");
  comm->stream = stream;
  comm->last = std::make_shared<Mark>();
  ++counts().collectives;
  return comm->start(
      [comm, number = ++comm->begun, queue = queue_of(stream), done = comm->last, from, to, count] {
        if (number == 1 && !comm->meeting->connect()) return ncclSystemError;
        queue->give([=] {
          run_all_reduce(*comm, number, from, to, count);
          done->set();
        });
        return ncclSuccess;
      });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const auto state = ready(comm); state != ncclSuccess) return state;
  if (std::exchange(comm->finalized, true)) return ncclInvalidArgument;
  return comm->start([last = comm->last] {
    if (last) last->wait();
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  if (const auto state = ready(comm); state == ncclInvalidArgument) return state;
  return end(comm);
}

// Its kernels end at once, in a group as well; what it has is freed when the group ends.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  comm->meeting->give_up();
  return end(comm);
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  if (--group_depth == 0) free_all(std::exchange(ending, {}));
  return ncclSuccess;
}

}  // extern "C"
