// Tests of how much memory something asks for.
#pragma once

#include <lockstep/base/sanitized.h>
#include <sys/resource.h>

#include <cstddef>

namespace lockstep::test {

// A sanitizer reserves address space without end, and keeps what is freed.
using lockstep::kSanitized;

// While it lives, the process's address space ends after so many MiB, as under ulimit -v.
class LittleMemory {
 public:
  explicit LittleMemory(std::size_t mib) {
    getrlimit(RLIMIT_AS, &usual_);
    rlimit small = usual_;
    small.rlim_cur = mib << 20;
    set_ = setrlimit(RLIMIT_AS, &small) == 0;
  }
  ~LittleMemory() { setrlimit(RLIMIT_AS, &usual_); }
  LittleMemory(const LittleMemory&) = delete;
  LittleMemory& operator=(const LittleMemory&) = delete;
  bool is_set() const { return set_; }

 private:
  rlimit usual_{};
  bool set_ = false;
};

}  // namespace lockstep::test
