// One job of the benchmark on this rank: a model, trained in all the ways that are compared. And its all-reduces as they
// happen, over Gloo as it is or over an imitated link.
#pragma once

#include <lockstep/record/decorated_backend.h>
#include <lockstep/train/distributed_data_parallel.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
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

struct JobSettings {
  std::string model;  // "convolutions", "small MLP" or "large MLP"
  std::int64_t batch = 32;
  std::vector<double> buckets_mib;  // one DDP for each; negative: PyTorch's default
  int steps = 2;                    // of a turn
};

// Milliseconds of a step of a turn, the mean over its steps.
struct Parts {
  double forward = 0;
  double backward = 0;  // up to the last gradient's arrival, when the last all-reduce begins
  double waiting =
      0;  // from then until backward returns; gradients are copied out of the buckets, too
  double update = 0;
  double reducing = 0;  // during which an all-reduce was under way; part of backward and waiting
  double exposed = 0;   // of that, what came after the last gradient

  double step() const { return forward + backward + waiting + update; }
  Parts& operator+=(const Parts& other);
  Parts operator/(double by) const;
};

class Job {
 public:
  Job(const JobSettings& settings, ProcessGroupPtr group, NotedBackend& backend);

  // Collective, with all ranks: each begins with a barrier.
  Parts ddp(std::size_t which);
  Parts no_sync();
  double all_reduce();  // of the first DDP's buckets, with nothing else to do: milliseconds
  double alone();       // the step without DDP, on rank 0 while the others wait; 0 on them

  std::int64_t parameters() const { return parameters_; }
  // All-reduces of a step.
  std::int64_t buckets(std::size_t which) const { return buckets_.at(which); }

 private:
  struct Replica {
    torch::nn::Sequential net;
    std::unique_ptr<DistributedDataParallel<torch::nn::Sequential>> ddp;
    std::unique_ptr<torch::optim::SGD> optimizer;
  };
  enum class Through { ddp, no_sync, module };

  Parts turn(Replica& replica, Through way);
  Parts step(Replica& replica, Through way);

  const int steps_;
  ProcessGroupPtr group_;
  NotedBackend& backend_;
  at::Tensor inputs_, targets_;
  std::vector<Replica> replicas_;  // one for each size of buckets
  std::vector<std::int64_t> buckets_;
  std::vector<AllReduce> reduced_;     // in the last step with DDP
  std::vector<at::Tensor> gradients_;  // as large as the first DDP's buckets
  std::int64_t parameters_ = 0;
};

}  // namespace lockstep::benchmark
