#include <lockstep/base/processors.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>

namespace lockstep {

std::vector<int> processors_of_this_process() {
  // The kernel refuses a set that is smaller than its own.
  for (int most = 1024; most <= (1 << 20); most *= 2) {
    cpu_set_t* set = CPU_ALLOC(most);
    if (set == nullptr) break;
    const auto size = CPU_ALLOC_SIZE(most);
    CPU_ZERO_S(size, set);
    std::vector<int> processors;
    const bool done = ::sched_getaffinity(0, size, set) == 0;
    const bool too_small = !done && errno == EINVAL;
    for (int number = 0; done && number < most; ++number)
      if (CPU_ISSET_S(number, size, set)) processors.push_back(number);
    CPU_FREE(set);
    if (!processors.empty()) return processors;
    if (!too_small) break;
  }
  return {0};
}

int processors_for_each_of(int sharers) {
  return std::max(1, static_cast<int>(processors_of_this_process().size()) / sharers);
}

}  // namespace lockstep
