#include <lockstep/base/error.h>
#include <lockstep/base/json_text.h>
#include <lockstep/course/flight_diagnosis.h>
#include <lockstep/flight/diagnosis.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

namespace lockstep::course {
namespace {

using nlohmann::json;

json to_json(const flight::Finding& finding) {
  return {{"pitfall", finding.pitfall},   {"severity", "violation"},
          {"ranks", finding.ranks},       {"group", finding.group},
          {"sequence", finding.sequence}, {"operation", finding.operation},
          {"differs", finding.differs},   {"follows", finding.follows},
          {"evidence", finding.evidence}};
}

json to_json(const flight::Diagnosis& diagnosis) {
  json findings = json::array();
  for (const auto& finding : diagnosis.findings) findings.push_back(to_json(finding));
  return {{"findings", findings},
          {"notes", diagnosis.notes},
          {"dumps", diagnosis.dumps},
          {"calls", diagnosis.entries},
          {"groups", diagnosis.groups}};
}

bool holds_traces(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator items(folder);
  return std::any_of(begin(items), end(items),
                     [](const auto& item) { return item.path().extension() == ".trace"; });
}

}  // namespace

std::optional<int> diagnose_flight_dumps(const std::vector<std::filesystem::path>& folders,
                                         const FlightOptions& options) {
  for (const auto& folder : folders) {
    if (!std::filesystem::is_directory(folder)) return std::nullopt;
    if (!options.prefix && holds_traces(folder)) return std::nullopt;
    const auto files = flight::find_dumps(folder, options.prefix);
    if (files.empty() && options.prefix)
      throw Error(folder.string() + " holds no dump named " + *options.prefix + "<rank>");
    if (files.empty()) return std::nullopt;
    if (folders.size() > 1)
      throw UsageError("flight-recorder dumps are of one moment: name one folder, not " +
                       std::to_string(folders.size()));
    const auto diagnosis = flight::diagnose(flight::read_dumps(files));
    if (options.as_json)
      std::cout << json_text(to_json(diagnosis), 2) << "\n";
    else
      std::cout << flight::to_text(diagnosis);
    return diagnosis.findings.empty() ? 0 : 1;
  }
  return std::nullopt;
}

}  // namespace lockstep::course
