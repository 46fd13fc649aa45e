#include <lockstep/base/json_text.h>
#include <lockstep/report/finding.h>

#include <nlohmann/json.hpp>

namespace lockstep::report {

std::string to_json(const diagnose::Finding& finding) {
  nlohmann::json json = {{"pitfall", finding.pitfall},   {"severity", to_string(finding.severity)},
                         {"ranks", finding.ranks},       {"step", finding.step},
                         {"sequence", finding.sequence}, {"evidence", finding.evidence}};
  if (finding.after >= 0) json["after"] = finding.after;
  if (!finding.accounts_for.empty()) json["accounts_for"] = finding.accounts_for;
  for (const auto& one : finding.nearest)
    json["nearest"].push_back({{"pitfall", one.pitfall},
                               {"sign", one.sign},
                               {"state", to_string(one.state)},
                               {"reason", one.reason}});
  for (const auto& place : finding.places) {
    nlohmann::json told = {{"ranks", place.ranks},
                           {"file", place.file},
                           {"line", place.line},
                           {"source", place.source}};
    if (!place.raised.empty()) told["raised"] = place.raised;
    json["places"].push_back(std::move(told));
  }
  return json_text(json);
}

}  // namespace lockstep::report
