// A bound on calls that have none of their own and cannot be aborted. Internal to dist.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

namespace lockstep::detail {

// Runs `call` in a thread and waits for it, at most `timeout`. False where it has not ended: its thread is left
// behind then, so `call` must own what it touches. Throws what `call` throws. Once it has ended, `call` and what it
// owned are gone.
inline bool ends_within(std::chrono::milliseconds timeout, std::function<void()> call) {
  auto promise = std::make_shared<std::promise<void>>();
  auto ended = promise->get_future();
  std::thread([promise, call = std::move(call)]() mutable {
    try {
      call();
      call = nullptr;
      promise->set_value();
    } catch (...) {
      call = nullptr;
      promise->set_exception(std::current_exception());
    }
  }).detach();
  if (ended.wait_for(timeout) != std::future_status::ready) return false;
  ended.get();
  return true;
}

}  // namespace lockstep::detail
