// JSON as text, in ASCII: it may be read in a terminal, and texts of jobs, files and exceptions may hold any bytes. What is
// not ASCII is escaped, what is not UTF-8 replaced.
#pragma once

#include <string>

namespace lockstep {

// Json: nlohmann::json. Each level is indented by `indent` columns; -1: all on one line.
template <class Json>
std::string json_text(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', true, Json::error_handler_t::replace);
}

}  // namespace lockstep
