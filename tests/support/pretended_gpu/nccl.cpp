// NCCL: communicators that do not block, their all-reduce, and their ends. What is done in the background, the call's
// answers and the order of an abort are those of NCCL 2.28 (src/group.cc, src/init.cc).
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "device.h"

using namespace pretended;

namespace {

constexpr int kMostRanks = 16;
constexpr std::size_t kMostFloats = 4096;
constexpr auto kBetweenLooks = std::chrono::microseconds(200);
static_assert(std::atomic<long>::is_always_lock_free, "it is shared by processes");

// Where the ranks of a pretended communicator meet: a file that all have mapped.
class Meeting {
 public:
  // Makes the file, empty; its name is to be the communicator's identifier.
  static std::string make() {
    static std::atomic<int> made{0};
    const auto name = "meeting_" + std::to_string(::getpid()) + "_" + std::to_string(++made);
    const int fd = ::open((folder() / name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, kMostRanks * sizeof(Member)) != 0)
      refuse("cannot make " + (folder() / name).string() + ": " + std::strerror(errno));
    ::close(fd);
    return name;
  }

  Meeting(const std::string& name, int rank, int size) : rank_(rank), size_(size) {
    if (size > kMostRanks) refuse("only " + std::to_string(kMostRanks) + " ranks are pretended");
    const int fd = ::open((folder() / name).c_str(), O_RDWR | O_CLOEXEC);
    if (fd >= 0)
      memory_ =
          ::mmap(nullptr, kMostRanks * sizeof(Member), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || memory_ == MAP_FAILED)
      refuse("cannot map " + (folder() / name).string() + ": " + std::strerror(errno));
    ::close(fd);
  }
  ~Meeting() { ::munmap(memory_, kMostRanks * sizeof(Member)); }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // What follows waits for all ranks, for ever. False when this rank has given up.
  // `place` is the rank's GPU and host.
  bool join(const std::string& place) {
    place.copy(own().place.data(), own().place.size() - 1);
    own().there = 1;
    return wait_for_all([](const Member& each) { return each.there == 1; });
  }
  bool has_same_place_twice() const {
    std::set<std::string> places;
    for (int rank = 0; rank < size_; ++rank) places.insert(member(rank).place.data());
    return places.size() < static_cast<std::size_t>(size_);
  }
  bool connect() {
    own().connected = 1;
    return wait_for_all([](const Member& each) { return each.connected == 1; });
  }
  // The sum over the ranks of their collective `number`, which is 1, 2, ... one after another. Takes `from` at once.
  bool sum(long number, const float* from, float* to, std::size_t count) {
    if (count > kMostFloats)
      refuse("only " + std::to_string(kMostFloats) + " floats are pretended");
    if (given_up_) return false;
    const auto slot = static_cast<std::size_t>(number % 2);
    std::copy_n(from, count, own().values[slot].begin());
    own().count[slot] = count;
    own().came = number;
    if (!wait_for_all([number](const Member& each) { return each.came >= number; })) return false;
    std::fill_n(to, count, 0.0F);
    for (int rank = 0; rank < size_; ++rank) {
      if (member(rank).count[slot] != count) refuse("ranks add tensors of different sizes");
      for (std::size_t i = 0; i < count; ++i) to[i] += member(rank).values[slot][i];
    }
    return true;
  }

  void give_up() { given_up_ = true; }
  void wait_until_given_up() const {
    while (!given_up_) std::this_thread::sleep_for(kBetweenLooks);
  }

 private:
  // A new file is zero, and so are the numbers. A rank writes its own only.
  struct Member {
    std::atomic<long> there, connected;
    std::atomic<long> came;  // to this collective
    std::array<char, 256> place;
    // Of the last two collectives: a rank that is at the next has read all of the one before the last.
    std::array<std::size_t, 2> count;
    std::array<std::array<float, kMostFloats>, 2> values;
  };

  Member& member(int rank) const { return static_cast<Member*>(memory_)[rank]; }
  Member& own() const { return member(rank_); }
  template <class Predicate>
  bool wait_for_all(Predicate predicate) const {
    for (int rank = 0; rank < size_; ++rank)
      while (!predicate(member(rank))) {
        if (given_up_) return false;
        std::this_thread::sleep_for(kBetweenLooks);
      }
    return !given_up_;
  }

  void* memory_ = nullptr;
  int rank_, size_;
  std::atomic<bool> given_up_{false};
};

}  // namespace

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
