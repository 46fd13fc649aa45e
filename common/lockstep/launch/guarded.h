// A small program's main.
#pragma once

#include <lockstep/base/exit_code.h>
#include <lockstep/launch/launch.h>

#include <exception>
#include <iostream>
#include <type_traits>

namespace lockstep::launch {

// Runs `work`, which gives the exit code, or nothing: kOk. What it throws becomes a line on standard error, what
// report_error writes, and kCouldNotRun.
template <class Work>
int guarded(const Work& work) {
  try {
    if constexpr (std::is_void_v<decltype(work())>) {
      work();
      return kOk;
    } else {
      return work();
    }
  } catch (const std::exception& error) {
    report_error(error);
    std::cerr << error.what() << std::endl;
    return kCouldNotRun;
  }
}

}  // namespace lockstep::launch
