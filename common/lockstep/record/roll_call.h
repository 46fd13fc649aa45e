// How the ranks of a group meet before an operation, and learn what each of them calls.
#pragma once

#include <lockstep/record/checked_backend.h>
#include <lockstep/record/fingerprint.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace lockstep::record {

// One side of a send and a recv.
struct PeerCall {
  enum class Side { send, receive } side = Side::send;
  int peer = -1;  // -1: whoever sends
  int tag = 0;
  Part part = {};
  std::int64_t sequence = 0;  // of send and recv on this rank, from 1
};

class RollCall {
 public:
  // Collective, blocks at most `timeout`. The store must be for this object alone on each rank.
  RollCall(StorePtr store, int rank, int size, std::chrono::milliseconds timeout);

  // Collective, blocks until all ranks are there; one thread at a time. Throws CollectiveMismatch
  // (on all ranks; the next meeting is unaffected), RanksMissing, and CollectiveError where a
  // meeting failed before.
  void meet(const std::string& operation, std::int64_t sequence, const Fingerprint& mine,
            std::chrono::milliseconds timeout);

  // The messages of a send or a recv, on their way. Any thread; in the order of the operations.
  struct Pending {
    PeerCall mine;
    at::Tensor my_words, their_words;
    WorkPtr sent, received;
  };
  Pending begin(const PeerCall& mine);
  // Blocks until the other side has begun too; any thread. Gives the peer. Throws as meet() does, on
  // the sender and the receiver; no meeting can follow.
  int finish(Pending& pending, std::chrono::milliseconds timeout);

 private:
  struct Meeting {
    std::string operation;
    std::int64_t sequence;
    std::chrono::milliseconds timeout;
  };
  at::Tensor gather(const at::Tensor& mine, const Meeting& meeting);
  std::vector<Fingerprint> exchange(const std::string& mine,
                                    const std::vector<std::int64_t>& lengths,
                                    const Meeting& meeting);
  void post(std::int64_t sequence, const std::string& doing);
  struct Status {
    std::int64_t sequence = 0;  // of the collective that it waits in; 0: of none
    std::string doing;          // "": it has waited for nobody so far
  };
  Status status_of(int rank);
  struct Absence {
    std::vector<int> ranks;
    std::string text;
  };
  Absence absence_of(const Meeting& meeting, const std::string& reason);
  Absence absence_of(const PeerCall& mine, const std::string& reason);
  void require_working(const Meeting& meeting);
  void end_of_meetings(const std::string& why);
  // The helper failed. Asks who is missing, and throws.
  template <class What>
  [[noreturn]] void not_met(const Meeting& meeting, const What& what, const std::string& reason);

  const StorePtr store_;
  const int rank_, size_;
  BackendPtr helper_;
  std::string last_operation_;  // at which all ranks were
  std::mutex mutex_;            // of the one below
  std::string broken_;          // why there can be no meeting any more
};

}  // namespace lockstep::record
