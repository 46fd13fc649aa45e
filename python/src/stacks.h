// Where a process is, written by faulthandler's own function of signals, which Python's calls do not offer.
#pragma once

namespace lockstep::python {

// From now on the thread that gets SIGINT or SIGTERM first writes its stack into this open file. The
// signal is listened to only where nobody but Python itself has it, and what it does then stays the
// same. `when_asked`: at SIGRTMIN every thread's stack is written, and nothing else is done. -1:
// nothing is written any more. Ends with the interpreter; a forked child writes nothing.
//
// The file is closed here. Where the program has closed it, and has opened another one by its
// number, nothing is written into that.
void write_stacks_into(int descriptor, bool when_asked);

// To be called before the program registers this signal with faulthandler, or asks whether it has.
void leave_signal(int number);

}  // namespace lockstep::python
