#include <lockstep/record/checked_backend.h>
#include <lockstep/record/decorated_backend.h>
#include <lockstep/record/fingerprint.h>
#include <lockstep/record/roll_call.h>

#include <exception>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

namespace lockstep::record {
namespace {

using std::chrono::milliseconds;

// A send or a recv whose sides are compared in a thread of its own.
class PeerWork final : public c10d::Work {
 public:
  // `run` gives the peer.
  PeerWork(c10d::OpType type, std::function<int()> run)
      : Work(-1, type), thread_([this, run = std::move(run)] {
          try {
            peer_ = run();
            finish();
          } catch (...) {
            finish(std::current_exception());
          }
        }) {}
  ~PeerWork() override { thread_.join(); }

  int sourceRank() const override { return peer_; }

 private:
  int peer_ = -1;
  std::thread thread_;
};

class CheckedBackend final : public DecoratedBackend {
 public:
  CheckedBackend(BackendPtr backend, StorePtr store, const CheckOptions& options)
      : DecoratedBackend(std::move(backend)),
        store_(std::move(store)),
        options_(options),
        peers_checked_(getBackendName() == "gloo"),
        roll_call_(std::make_shared<RollCall>(store_, getRank(), getSize(), timeout())) {}

  WorkPtr send(Tensors& tensors, int destination, int tag) override {
    pass_on();
    if (!peers_checked_) return inner()->send(tensors, destination, tag);
    auto pending = begin(PeerCall::Side::send, tensors, destination, tag);
    // Gloo moves nothing before the receiver has called recv.
    auto work = inner()->send(tensors, destination, tag);
    return c10::make_intrusive<PeerWork>(
        c10d::OpType::SEND, [pending, work, roll_call = roll_call_, time = timeout()]() mutable {
          const int peer = roll_call->finish(pending, time);
          work->wait();
          return peer;
        });
  }
  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    if (!peers_checked_) return inner()->recv(tensors, source, tag);
    return receive(tensors, source, tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    if (!peers_checked_) return inner()->recvAnysource(tensors, tag);
    return receive(tensors, -1, tag);
  }

 private:
  WorkPtr around(const Call& call, Start start) override {
    // What is checked first is started first.
    const std::lock_guard lock(mutex_);
    const auto time = call.timeout.count() > 0 ? call.timeout : timeout();
    roll_call_->meet(call.op, ++sequence_, fingerprint_of(call, getGroupUid(), getSize()), time);
    return start();
  }

  BackendPtr decorate_member(BackendPtr member, const StorePtr& store) override {
    if (store) return check(std::move(member), store, options_);
    return check(
        std::move(member),
        c10::make_intrusive<c10d::PrefixStore>("member_" + std::to_string(++members_), store_),
        options_);
  }

  RollCall::Pending begin(PeerCall::Side side, const Tensors& tensors, int peer, int tag) {
    const auto& tensor = tensors.at(0);
    return roll_call_->begin({.side = side,
                              .peer = peer,
                              .tag = tag,
                              .part = {tensor.scalar_type(), tensor.numel()},
                              .sequence = ++peer_sequence_});
  }

  // The inner backend hears of it when the sides agree; and of those with one source and tag in the
  // order of the calls.
  WorkPtr receive(Tensors& tensors, int source, int tag) {
    pass_on();
    auto pending = begin(PeerCall::Side::receive, tensors, source, tag);
    auto posted = std::make_shared<std::promise<void>>();
    auto before = std::exchange(receiving_[{source, tag}], posted->get_future().share());
    return c10::make_intrusive<PeerWork>(
        source < 0 ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV,
        [pending, before, posted = std::move(posted), tensors, tag, inner = inner(),
         roll_call = roll_call_, time = timeout()]() mutable {
          const int peer = roll_call->finish(pending, time);
          if (before.valid()) before.wait();
          const auto work = inner->recv(tensors, peer, tag);
          posted->set_value();
          work->wait();
          return peer;
        });
  }

  milliseconds timeout() {
    return options_.timeout.count() > 0 ? options_.timeout : inner()->getBackendOptions()->timeout;
  }

  const StorePtr store_;
  const CheckOptions options_;
  const bool peers_checked_;
  const std::shared_ptr<RollCall> roll_call_;
  std::mutex mutex_;
  std::int64_t sequence_ = 0;
  int members_ = 0;
  // Used by one thread at a time, as send and recv of a backend are.
  std::int64_t peer_sequence_ = 0;
  std::map<std::pair<int, int>, std::shared_future<void>> receiving_;  // [source, tag]: the last
};

}  // namespace

CollectiveMismatch::CollectiveMismatch(int rank_, const std::string& operation_,
                                       std::int64_t sequence_, milliseconds timeout_,
                                       const std::string& cause, std::vector<int> ranks_)
    : CollectiveError(rank_, operation_, sequence_, timeout_, cause), ranks(std::move(ranks_)) {}

RanksMissing::RanksMissing(int rank_, const std::string& operation_, std::int64_t sequence_,
                           milliseconds timeout_, const std::string& cause, std::vector<int> ranks_)
    : CollectiveError(rank_, operation_, sequence_, timeout_, cause), ranks(std::move(ranks_)) {}

BackendPtr check(BackendPtr backend, StorePtr store, const CheckOptions& options) {
  if (backend->getSize() == 1) return backend;
  return c10::make_intrusive<CheckedBackend>(
      std::move(backend),
      c10::make_intrusive<c10d::PrefixStore>("lockstep_check", std::move(store)), options);
}

}  // namespace lockstep::record
