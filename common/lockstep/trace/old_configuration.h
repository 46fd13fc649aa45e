// Until the events of setup_event.h had types of their own, traces held each of them as a Configuration.
#pragma once

#include <lockstep/trace/recorded_event.h>

namespace lockstep::trace {

// Of a Configuration the event that says the same. Every other event is left as it is, and a Configuration of something
// that no recorder has written.
SharedPayload typed(SharedPayload payload);

}  // namespace lockstep::trace
