// Which collectives are between two ranks.
#pragma once

#include <lockstep/trace/event.h>

#include <string>

namespace lockstep::trace {

// A send or a receive, whose sequences count apart from the others'.
inline bool is_point_to_point(const Collective& call) {
  return call.op.find("send") != std::string::npos || call.op.find("recv") != std::string::npos;
}

}  // namespace lockstep::trace
