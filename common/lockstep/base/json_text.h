// JSON as text. Texts of jobs, files and exceptions may hold any bytes, and JSON holds UTF-8 only: other bytes are replaced.
#pragma once

#include <string>

namespace lockstep {

// Json: nlohmann::json. Each level is indented by `indent` columns; -1: all on one line.
template <class Json>
std::string json_text(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lockstep
