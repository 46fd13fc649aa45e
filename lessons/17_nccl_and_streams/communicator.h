// What a process group does around NCCL, by hand: a communicator that never waits for ever (parts.h says how long).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device.h"

class Communicator {
 public:
  // Collective. One of several of this process, told apart by their names. `stream` is where its collectives run.
  Communicator(lockstep::RankContext& context, const std::string& name, const Stream& stream);
  // Waits for what is under way; when an exception is, gives up, and all other communicators of this process with it.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Collective, and given to the stream: it is done when wait() has returned, or what comes behind it on the stream
  // runs. `to` may be `from`. Returns its number.
  std::int64_t all_reduce(const Floats& from, const Floats& to);
  // Blocks until that all_reduce is done. Throws CollectiveError when a peer fails or does not come; no communicator
  // of this process is of use then.
  void wait(std::int64_t number);

  const Stream& stream() const { return stream_; }

 private:
  bool finalized();
  void until_ready(const std::string& what, std::chrono::seconds patience);
  [[noreturn]] void give_up(const std::string& what, std::chrono::seconds patience,
                            const std::string& why);

  struct Pending {
    std::uint64_t entered = 0;  // as the probes know it; 0 = left
    Moment done;
  };
  lockstep::RankContext& context_;
  std::string name_;
  const Stream& stream_;
  ncclComm_t handle_ = nullptr;
  std::vector<std::unique_ptr<Pending>> pending_;
  int exceptions_;
};
