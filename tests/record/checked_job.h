// Thread ranks over a checked backend, and what each of them was told.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/record/checked_backend.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <utility>
#include <vector>

#include "../support/thread_ranks.h"

namespace lockstep::test {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct CheckedJob {
  explicit CheckedJob(int world_size,
                      std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    options.world_size = world_size;
    options.timeout = timeout;
    options.decorate = [this](BackendPtr backend, const StorePtr&) {
      return record::check(std::move(backend), store);
    };
  }
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  ThreadRanksOptions options;  // for run_thread_ranks, which begins with a barrier, sequence 1
};

// What `call` throws, as E; fails the test where it throws nothing, or something else.
template <class E, class F>
std::optional<E> thrown_by(F call) {
  try {
    call();
  } catch (const E& error) {
    return error;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return std::nullopt;
  }
  ADD_FAILURE() << "nothing was thrown";
  return std::nullopt;
}

// Collectives of whole tensors, as the backend is called.
inline WorkPtr all_reduce_of(c10d::Backend& backend, at::Tensor tensor,
                             c10d::ReduceOp op = c10d::ReduceOp::SUM) {
  Tensors tensors{std::move(tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  return backend.allreduce(tensors, options);
}

inline WorkPtr broadcast_of(c10d::Backend& backend, at::Tensor tensor, int root) {
  Tensors tensors{std::move(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return backend.broadcast(tensors, options);
}

inline WorkPtr all_gather_of(c10d::Backend& backend, const at::Tensor& input,
                             const Tensors& outputs) {
  Tensors inputs{input};
  std::vector<Tensors> lists{outputs};
  return backend.allgather(lists, inputs, {});
}

inline WorkPtr send_to(c10d::Backend& backend, const at::Tensor& tensor, int peer, int tag) {
  Tensors tensors{tensor};
  return backend.send(tensors, peer, tag);
}

inline WorkPtr receive_from(c10d::Backend& backend, const at::Tensor& tensor, int peer, int tag) {
  Tensors tensors{tensor};
  return backend.recv(tensors, peer, tag);
}

}  // namespace lockstep::test
