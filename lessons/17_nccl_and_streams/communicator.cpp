#include "communicator.h"

#include <exception>
#include <numeric>
#include <thread>
#include <utility>

#include "parts.h"

using namespace lockstep;
using gpu::check;

namespace {

constexpr auto kBetweenLooks = std::chrono::microseconds(50);

// A communicator's first operation also connects the ranks.
std::chrono::seconds patience_for(std::int64_t number) {
  return number == 1 ? kUntilAllAreThere : kPatience;
}

// All communicators of this process, which uses them from one thread.
std::vector<ncclComm_t*> in_use;

// Ends the kernels that wait, of all communicators together. One alone would hang: ncclCommAbort()
// frees its memory on the GPU, which waits for the device, and so for the kernels of the others. In
// a group, which ncclCommAbort() allows since NCCL 2.22, all are told to end before anything is
// freed.
void abort_all() {
  ncclGroupStart();
  for (auto* each : in_use) ncclCommAbort(std::exchange(*each, nullptr));
  ncclGroupEnd();
  in_use.clear();
}

// As check(). When it throws, it leaves no kernel behind that waits: freeing memory would wait with
// it.
template <typename Code>
void check_or_abort(Code code, const std::string& call) {
  try {
    check(code, call);
  } catch (...) {
    abort_all();
    throw;
  }
}

// A communicator that does not block returns ncclInProgress where others would block;
// ncclCommGetAsyncError() tells when it is done.
void check_started(ncclResult_t code, const std::string& call) {
  if (code != ncclInProgress) check_or_abort(code, call);
}

}  // namespace

Communicator::Communicator(RankContext& context, const std::string& name, const Stream& stream)
    : context_(context), name_(name), stream_(stream), exceptions_(std::uncaught_exceptions()) {
  std::vector<std::int64_t> members(static_cast<std::size_t>(context.world_size()));
  std::iota(members.begin(), members.end(), 0);
  context_.told().tell(trace::Group{"join", name_, members});
  const auto id = shared_id(context, name);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // else a rank whose peer never comes cannot be brought back
  const auto code =
      ncclCommInitRankConfig(&handle_, context.world_size(), id, context.rank(), &config);
  if (handle_ != nullptr) in_use.push_back(&handle_);
  check_started(code, "ncclCommInitRankConfig");
  until_ready("ncclCommInitRankConfig", kUntilAllAreThere);
  context_.told().tell(trace::Group{"joined", name_, members});
}

Communicator::~Communicator() {
  if (handle_ == nullptr) return;
  const bool in_order = std::uncaught_exceptions() == exceptions_ && finalized();
  if (!in_order) {
    abort_all();
    return;
  }
  std::erase(in_use, &handle_);
  ncclCommDestroy(handle_);
}

// Whether all that was begun is done, and the peers know.
bool Communicator::finalized() {
  auto state = ncclCommFinalize(handle_);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (state == ncclInProgress && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kBetweenLooks);
    if (ncclCommGetAsyncError(handle_, &state) != ncclSuccess) return false;
  }
  return state == ncclSuccess;
}

// Waits until the last call is done, as far as this process goes: an operation is then on its
// stream.
void Communicator::until_ready(const std::string& what, std::chrono::seconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  for (;;) {
    ncclResult_t state = ncclSuccess;
    check_or_abort(ncclCommGetAsyncError(handle_, &state), "ncclCommGetAsyncError");
    if (state == ncclSuccess) return;
    if (state != ncclInProgress) give_up(what, patience, ncclGetErrorString(state));
    if (std::chrono::steady_clock::now() > until) give_up(what, patience, "a peer does not come");
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

std::int64_t Communicator::all_reduce(const Floats& from, const Floats& to) {
  const auto number = static_cast<std::int64_t>(pending_.size()) + 1;
  trace::Collective call;
  call.sequence = number;
  call.group = name_;
  call.op = "allreduce";
  call.reduce_op = "sum";
  call.dtype = "float32";
  call.sizes = {from.count()};
  auto& told = context_.told();
  pending_.push_back(std::make_unique<Pending>());
  pending_.back()->entered = told.enter(call);
  const auto& done = pending_.back()->done;
  told.tell(trace::StreamUse{"read", stream_.number(), from.number(), 0});
  told.tell(trace::StreamUse{"write", stream_.number(), to.number(), 0});
  told.tell(trace::StreamUse{"record", stream_.number(), 0, done.number()});

  check_started(ncclAllReduce(from.data(), to.data(), static_cast<std::size_t>(from.count()),
                              ncclFloat, ncclSum, handle_, stream_),
                "ncclAllReduce");
  until_ready("all_reduce", patience_for(number));
  check_or_abort(cudaEventRecord(done, stream_), "cudaEventRecord");
  return number;
}

void Communicator::wait(std::int64_t number) {
  auto& pending = *pending_.at(static_cast<std::size_t>(number - 1));
  const auto patience = patience_for(number);
  const auto until = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const auto state = cudaEventQuery(pending.done);
    if (state == cudaSuccess) break;
    if (state != cudaErrorNotReady) check_or_abort(state, "cudaEventQuery");
    cudaGetLastError();  // else that answer would look like the next kernel's error
    // The kernel waits on the GPU for its peers, without end. Only this call says that one has
    // failed.
    ncclResult_t error = ncclSuccess;
    check_or_abort(ncclCommGetAsyncError(handle_, &error), "ncclCommGetAsyncError");
    if (error != ncclSuccess && error != ncclInProgress)
      give_up("all_reduce", patience, ncclGetErrorString(error));
    if (std::chrono::steady_clock::now() > until)
      give_up("all_reduce", patience, "a peer does not come");
    std::this_thread::sleep_for(kBetweenLooks);
  }
  context_.told().leave(std::exchange(pending.entered, 0));
  context_.told().tell(trace::StreamUse{"synchronize", -1, 0, pending.done.number()});
}

// Before the exception leaves: on its way buffers are freed, which waits for the device.
void Communicator::give_up(const std::string& what, std::chrono::seconds patience,
                           const std::string& why) {
  abort_all();
  for (const auto& pending : pending_) context_.told().leave(pending->entered, true);
  throw CollectiveError(context_.rank(), what + " of communicator " + name_,
                        static_cast<std::int64_t>(pending_.size()), patience, why);
}
