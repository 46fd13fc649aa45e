// Operations that are the library's, and not the program's.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lockstep {

// While it lives, this thread's operations are not looked at or changed by who proves the program (prove/operations.h).
struct OwnOperations : c10::impl::ExcludeDispatchKeyGuard {
  OwnOperations() : ExcludeDispatchKeyGuard(c10::DispatchKey::TESTING_ONLY_GenericMode) {}
};

}  // namespace lockstep
