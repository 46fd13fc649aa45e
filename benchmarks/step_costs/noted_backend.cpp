#include "noted_backend.h"

#include <lockstep/base/clock.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

namespace lockstep::benchmark {

NotedBackend::NotedBackend(BackendPtr inner_backend, double bytes_a_second)
    : DecoratedBackend(std::move(inner_backend)), bytes_a_second_(bytes_a_second) {
  if (bytes_a_second_ > 0) link_ = std::thread([this] { carry(); });
}

NotedBackend::~NotedBackend() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  if (link_.joinable()) link_.join();
}

std::vector<AllReduce> NotedBackend::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return under_way_ == 0; });
  return std::exchange(noted_, {});
}

record::WorkPtr NotedBackend::around(const record::Call& call, Start start) {
  if (std::string_view(call.op) != "allreduce") return start();
  const auto at = begin(call);
  auto work = start();
  if (bytes_a_second_ <= 0) {
    work->getFuture()->addCallback([this, at](c10::ivalue::Future&) { end(at); });
    return work;
  }
  auto done = c10::make_intrusive<c10::ivalue::Future>(work->getFuture()->elementType());
  {
    const std::lock_guard lock(mutex_);
    on_their_way_.push_back({std::move(work), done, at});
  }
  changed_.notify_all();
  return c10d::Work::create_from_future(done);
}

BackendPtr NotedBackend::decorate_member(BackendPtr member, const StorePtr&) {
  return c10::make_intrusive<NotedBackend>(std::move(member), bytes_a_second_);
}

std::size_t NotedBackend::begin(const record::Call& call) {
  AllReduce noted;
  for (const auto& tensor : call.tensors) noted.bytes += static_cast<std::int64_t>(tensor.nbytes());
  const std::lock_guard lock(mutex_);
  noted.began = monotonic_ns();
  noted_.push_back(noted);
  ++under_way_;
  return noted_.size() - 1;
}

void NotedBackend::end(std::size_t at) {
  {
    const std::lock_guard lock(mutex_);
    noted_.at(at).ended = monotonic_ns();
    --under_way_;
  }
  changed_.notify_all();
}

// The link's thread. An error of Gloo's goes to whoever waits for the all-reduce.
void NotedBackend::carry() {
  const double rings_share = 2.0 * (getSize() - 1) / getSize();
  std::int64_t free_at = 0;
  for (;;) {
    OnItsWay next;
    AllReduce noted;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closed_ || !on_their_way_.empty(); });
      if (on_their_way_.empty()) return;
      next = std::move(on_their_way_.front());
      on_their_way_.pop_front();
      noted = noted_.at(next.at);
    }
    try {
      next.work->wait();
    } catch (...) {
      next.done->setError(std::current_exception());
      end(next.at);
      continue;
    }
    const double seconds = rings_share * static_cast<double>(noted.bytes) / bytes_a_second_;
    free_at = std::max(free_at, noted.began) + static_cast<std::int64_t>(seconds * 1e9);
    std::this_thread::sleep_for(std::chrono::nanoseconds(free_at - monotonic_ns()));
    end(next.at);
    next.done->markCompleted(next.work->getFuture()->value());
  }
}

}  // namespace lockstep::benchmark
