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
  for (const auto& place : finding.places)
    json["places"].push_back({{"ranks", place.ranks},
                              {"file", place.file},
                              {"line", place.line},
                              {"source", place.source}});
  return json_text(json);
}

}  // namespace lockstep::report
