// Tests of how much memory something asks for.
#pragma once

#include <sys/resource.h>

#include <cstddef>

namespace lockstep::test {

// A sanitizer reserves address space without end, and keeps what is freed.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

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
