#include "job.h"

#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

namespace lockstep::benchmark {
namespace {

constexpr int kWarmUp = 3;  // steps; DDP forms its buckets anew after the first

double milliseconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e6;
}

torch::nn::Sequential mlp(std::int64_t width, int hidden_layers) {
  using torch::nn::Linear, torch::nn::ReLU;
  torch::nn::Sequential net(Linear(784, width), ReLU());
  for (int i = 1; i < hidden_layers; ++i) {
    net->push_back(Linear(width, width));
    net->push_back(ReLU());
  }
  net->push_back(Linear(width, 10));
  return net;
}

torch::nn::Sequential convolutions() {
  using namespace torch::nn;
  return Sequential(Unflatten(UnflattenOptions(1, {1, 28, 28})),
                    Conv2d(Conv2dOptions(1, 16, 3).padding(1)), ReLU(), MaxPool2d(2),
                    Conv2d(Conv2dOptions(16, 32, 3).padding(1)), ReLU(), MaxPool2d(2), Flatten(),
                    Linear(32 * 7 * 7, 10));
}

// Made of equal layers, so that buckets of several sizes fill while backward goes through them.
torch::nn::Sequential make(const std::string& model) {
  if (model == "convolutions") return convolutions();
  if (model == "small MLP") return mlp(256, 3);
  if (model == "large MLP") return mlp(512, 23);
  throw UsageError("there is no model \"" + model + "\"");
}

// During which an all-reduce was under way, from `counted_to` on.
double reducing(const std::vector<AllReduce>& all, std::int64_t counted_to = 0) {
  std::int64_t total = 0;
  for (const auto& one : all) {
    total += std::max<std::int64_t>(0, one.ended - std::max(counted_to, one.began));
    counted_to = std::max(counted_to, one.ended);
  }
  return milliseconds(total);
}

}  // namespace

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

Parts& Parts::operator+=(const Parts& other) {
  forward += other.forward;
  backward += other.backward;
  waiting += other.waiting;
  update += other.update;
  reducing += other.reducing;
  exposed += other.exposed;
  return *this;
}

Parts Parts::operator/(double by) const {
  return {forward / by, backward / by, waiting / by, update / by, reducing / by, exposed / by};
}

Job::Job(const JobSettings& settings, ProcessGroupPtr group, NotedBackend& backend)
    : steps_(settings.steps), group_(std::move(group)), backend_(backend) {
  torch::manual_seed(static_cast<std::uint64_t>(1 + group_->getRank()));
  inputs_ = torch::randn({settings.batch, 784});
  targets_ = torch::randint(10, {settings.batch});
  for (const double cap : settings.buckets_mib) {
    auto net = make(settings.model);
    auto& replica = replicas_.emplace_back();
    replica.net = net;
    replica.ddp = std::make_unique<DistributedDataParallel<torch::nn::Sequential>>(
        net, group_, DdpOptions{.bucket_cap_mb = cap});
    replica.optimizer = std::make_unique<torch::optim::SGD>(net->parameters(), 0.001);
    for (int i = 0; i < kWarmUp; ++i) step(replica, Through::ddp);
    buckets_.push_back(static_cast<std::int64_t>(reduced_.size()));
    if (!gradients_.empty()) continue;
    for (const auto& one : reduced_) gradients_.push_back(torch::zeros({one.bytes / 4}));
    for (const auto& parameter : net->parameters()) parameters_ += parameter.numel();
  }
}

Parts Job::step(Replica& replica, Through way) {
  std::optional<NoSync> no_sync;
  if (way == Through::no_sync) no_sync.emplace(replica.ddp->engine());
  const auto begin = monotonic_ns();
  replica.net->zero_grad();
  const auto outputs =
      way == Through::module ? replica.net->forward(inputs_) : (*replica.ddp)(inputs_);
  auto loss = torch::nn::functional::cross_entropy(outputs, targets_);
  const auto forward_ended = monotonic_ns();
  loss.backward();
  const auto backward_ended = monotonic_ns();
  replica.optimizer->step();
  const auto end = monotonic_ns();

  auto last_gradient = backward_ended;
  Parts parts;
  if (way == Through::ddp) {
    reduced_ = backend_.take();
    last_gradient = reduced_.back().began;
    parts.reducing = reducing(reduced_);
    parts.exposed = reducing(reduced_, last_gradient);
  }
  parts.forward = milliseconds(forward_ended - begin);
  parts.backward = milliseconds(last_gradient - forward_ended);
  parts.waiting = milliseconds(backward_ended - last_gradient);
  parts.update = milliseconds(end - backward_ended);
  return parts;
}

Parts Job::turn(Replica& replica, Through way) {
  Parts total;
  backend_.take();
  for (int i = 0; i < steps_; ++i) total += step(replica, way);
  return total / steps_;
}

Parts Job::ddp(std::size_t which) {
  barrier(*group_);
  return turn(replicas_.at(which), Through::ddp);
}

Parts Job::no_sync() {
  barrier(*group_);
  return turn(replicas_.front(), Through::no_sync);
}

double Job::all_reduce() {
  barrier(*group_);
  const auto begin = monotonic_ns();
  for (int i = 0; i < steps_; ++i) {
    std::vector<record::WorkPtr> works;
    for (const auto& gradients : gradients_) {
      std::vector<at::Tensor> tensors{gradients};
      works.push_back(group_->allreduce(tensors));
    }
    for (const auto& work : works) work->wait();
  }
  return milliseconds(monotonic_ns() - begin) / steps_;
}

double Job::alone() {
  barrier(*group_);
  const double step = group_->getRank() == 0 ? turn(replicas_.front(), Through::module).step() : 0;
  barrier(*group_);  // the others' next turn would meet it
  return step;
}

}  // namespace lockstep::benchmark
