// JSON as text. Texts of jobs, files and exceptions may hold any bytes, and JSON holds UTF-8 only: other bytes are replaced.
#pragma once

#include <string>

namespace lockstep {

inline constexpr int kOnOneLine = -1;

// Json: nlohmann::json. `indent` columns a level.
template <class Json>
std::string json_text(const Json& value, int indent = kOnOneLine) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lockstep
