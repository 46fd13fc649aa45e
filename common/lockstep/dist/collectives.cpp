#include <lockstep/base/error.h>
#include <lockstep/dist/collective_call.h>
#include <lockstep/dist/process_group.h>
#include <lockstep/observe/observer.h>

#include <chrono>
#include <cstdint>
#include <exception>

namespace lockstep {
namespace {

// A backend need not know either; an error is worth reporting without them.
std::int64_t sequence_of(c10d::ProcessGroup& group) {
  try {
    return static_cast<std::int64_t>(group.getDefaultBackend()->getSequenceNumberForGroup());
  } catch (const std::exception&) {
    return 0;
  }
}

std::chrono::milliseconds timeout_of(c10d::ProcessGroup& group) {
  try {
    return group.getDefaultBackend()->getBackendOptions()->timeout;
  } catch (const std::exception&) {
    return std::chrono::milliseconds{0};
  }
}

}  // namespace

// Gloo's wait() blocks, at most as long as the operation may take. NCCL's only lets the current
// stream wait, and tells of no failure; with a timeout it blocks until the device is done, and
// throws.
void finish(c10d::ProcessGroup& group, const c10::intrusive_ptr<c10d::Work>& work) {
  const bool blocks = group.getBackendType() == c10d::ProcessGroup::BackendType::GLOO;
  if (!work->wait(blocks ? kNoTimeout : timeout_of(group))) throw Error("it was aborted");
  if (blocks) return;
  const auto said = group.getDefaultBackend()->getError();
  if (said != c10d::ErrorType::SUCCESS) throw failed_before(said);
}

Error failed_before(c10d::ErrorType said) {
  return Error(std::string("an operation before it ") +
               (said == c10d::ErrorType::TIMEOUT ? "timed out" : "failed") +
               ": what was computed since is not to be used");
}

void collective_call(c10d::ProcessGroup& group, const std::string& operation,
                     const std::function<void()>& call) {
  try {
    call();
  } catch (const CollectiveError&) {
    throw;
  } catch (const std::exception& error) {
    throw CollectiveError(group.getRank(), operation, sequence_of(group), timeout_of(group),
                          text_of(error));
  }
}

void all_reduce(c10d::ProcessGroup& group, at::Tensor& tensor, c10d::ReduceOp::RedOpType op,
                Place place) {
  tell_began("collective", place);
  collective_call(group, "all_reduce", [&] {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    finish(group, group.allreduce(tensors, options));
  });
}

void broadcast(c10d::ProcessGroup& group, at::Tensor& tensor, int root, Place place) {
  tell_began("collective", place);
  collective_call(group, "broadcast", [&] {
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    finish(group, group.broadcast(tensors, options));
  });
}

std::vector<at::Tensor> all_gather(c10d::ProcessGroup& group, const at::Tensor& tensor,
                                   Place place) {
  tell_began("collective", place);
  std::vector<std::vector<at::Tensor>> outputs(1);
  collective_call(group, "all_gather", [&] {
    std::vector<at::Tensor> inputs{tensor.contiguous()};
    for (int rank = 0; rank < group.getSize(); ++rank)
      outputs[0].push_back(at::empty_like(inputs[0]));
    finish(group, group.allgather(outputs, inputs));
  });
  return outputs[0];
}

void barrier(c10d::ProcessGroup& group, Place place) {
  tell_began("collective", place);
  // The backend's, not the group's: ProcessGroup::barrier of torch 2.11 keeps its tensor in a
  // static variable, for which ranks that are threads of one process race.
  collective_call(group, "barrier", [&] { finish(group, group.getDefaultBackend()->barrier()); });
}

}  // namespace lockstep
