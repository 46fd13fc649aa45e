// The findings of faults that no pitfall has a name for (trace.md lists them).
#pragma once

#include <string>

namespace lockstep::diagnose {

bool is_generic(const std::string& slug);

}  // namespace lockstep::diagnose
