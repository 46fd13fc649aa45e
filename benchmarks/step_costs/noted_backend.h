// The all-reduces of a rank as they happen, over Gloo as it is or over an imitated link.
#pragma once

#include <lockstep/record/decorated_backend.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep::benchmark {

struct AllReduce {
  std::int64_t bytes = 0;
  std::int64_t began = 0, ended = 0;  // by monotonic_ns
};

// Notes when all-reduces begin and end. Through a link of `bytes_a_second` an all-reduce also takes at least what a
// ring's traffic does, 2 (W - 1) / W of its bytes, and one follows the other; the waiting needs no processor, as with a
// network card. 0: no link, as fast as Gloo is.
class NotedBackend final : public record::DecoratedBackend {
 public:
  NotedBackend(BackendPtr inner, double bytes_a_second);
  ~NotedBackend() override;

  // This rank's all-reduces since the last call. Blocks until all of them have ended.
  std::vector<AllReduce> take();

 private:
  struct OnItsWay {
    record::WorkPtr work;
    c10::intrusive_ptr<c10::ivalue::Future> done;
    std::size_t at;  // in noted_
  };

  record::WorkPtr around(const record::Call& call, Start start) override;
  BackendPtr decorate_member(BackendPtr member, const StorePtr& store) override;
  std::size_t begin(const record::Call& call);
  void end(std::size_t at);
  void carry();

  const double bytes_a_second_;
  std::mutex mutex_;  // guards what follows, up to the thread
  std::condition_variable changed_;
  std::vector<AllReduce> noted_;
  std::size_t under_way_ = 0;
  std::deque<OnItsWay> on_their_way_;
  bool closed_ = false;
  std::thread link_;
};

}  // namespace lockstep::benchmark
