#pragma once

namespace lockstep {

// Ends this process, without the destructors of static objects: LibTorch's take 0.2 s of a processor to undo what is
// gone with the process anyway. Output is written; what else must happen is registered with std::at_quick_exit.
[[noreturn]] void end_process(int exit_code);

}  // namespace lockstep
