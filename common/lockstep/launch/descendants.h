// The processes that ranks start: found and ended even when they left the rank's process group.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>

namespace lockstep::launch {

// Makes this process the parent of every orphan among its descendants, while it lives.
class Subreaper {
 public:
  Subreaper();
  ~Subreaper();
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

 private:
  int before_ = 0;
};

// The children of this process, ended and unreaped ones included, read from /proc.
std::set<pid_t> children();

// Kills and reaps every child of this process that is not in `spared`, and the children that they
// leave to it in turn, until none is left or the monotonic clock shows `until_ns`. Returns those
// still there.
std::set<pid_t> end_children(const std::set<pid_t>& spared, std::int64_t until_ns);

}  // namespace lockstep::launch
