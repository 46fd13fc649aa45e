#pragma once

namespace lockstep {

// Ends this process without the destructors of static objects. LibTorch's take 0.2 s of a processor, and free what the
// kernel frees anyway. Output is flushed; functions registered with std::at_quick_exit run. Under a sanitizer it is
// std::exit, at which the sanitizer looks for leaks.
[[noreturn]] void end_process(int exit_code);

}  // namespace lockstep
