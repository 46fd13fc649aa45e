// What a process group does around NCCL, by hand: a communicator with deadlines (parts.h has them).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device.h"

class Communicator {
 public:
  // Collective. A process may have several, told apart by their names. `stream`: where it runs.
  Communicator(lockstep::RankContext& context, const std::string& name, const Stream& stream);
  // Waits for operations under way. While an exception is under way, aborts instead, together with
  // all other communicators of this process.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Collective, and put on the stream: it is done when wait() has returned, or when later work on
  // the stream runs. `to` may be `from`. Returns its number.
  std::int64_t all_reduce(const Floats& from, const Floats& to);
  // Blocks until that all_reduce is done. Throws CollectiveError when a peer fails or does not
  // come; after that no communicator of this process can be used.
  void wait(std::int64_t number);

  const Stream& stream() const { return stream_; }

 private:
  bool finalized();
  void until_ready(const std::string& what, std::chrono::seconds patience);
  [[noreturn]] void give_up(const std::string& what, std::chrono::seconds patience,
                            const std::string& why);

  struct Pending {
    std::uint64_t entered = 0;  // as the trace knows it; 0 = left
    Moment done;
  };
  lockstep::RankContext& context_;
  std::string name_;
  const Stream& stream_;
  ncclComm_t handle_ = nullptr;
  std::vector<std::unique_ptr<Pending>> pending_;
  int exceptions_;
};
