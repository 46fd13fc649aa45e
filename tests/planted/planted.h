// Switches one fault of faults.json on: the one whose number LOCKSTEP_PLANTED has, in this process and those it starts.
#pragma once

#include <cstdlib>

namespace lockstep::planted {

// 0: none.
inline int number() {
  static const int kNumber = [] {
    const char* text = std::getenv("LOCKSTEP_PLANTED");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  return kNumber;
}

}  // namespace lockstep::planted

#define PLANTED(n) (::lockstep::planted::number() == (n))
