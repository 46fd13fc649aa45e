// The trace as JSON, one object per participant, for people and other tools
// (reports/schema/trace.schema.json).
#pragma once

#include <lockstep/trace/reader.h>

#include <string>

namespace lockstep::trace {

std::string to_json(const Trace& trace);

}  // namespace lockstep::trace
