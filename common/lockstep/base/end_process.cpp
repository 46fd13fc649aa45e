#include <lockstep/base/end_process.h>
#include <lockstep/base/sanitized.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace lockstep {

void end_process(int exit_code) {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  if (kSanitized) std::exit(exit_code);
  std::quick_exit(exit_code);
}

}  // namespace lockstep
