#include <lockstep/report/finding.h>

#include <nlohmann/json.hpp>

namespace lockstep::report {

std::string to_json(const diagnose::Finding& finding) {
  nlohmann::json json;
  visit_fields(finding, [&](const char* name, const auto& value) { json[name] = value; });
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace lockstep::report
