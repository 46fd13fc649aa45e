#include <lockstep/base/json_text.h>
#include <lockstep/compare/compare.h>

#include <nlohmann/json.hpp>
#include <tuple>

namespace lockstep::compare {
namespace {

using nlohmann::json;

json distances_json(const Distances& distances) {
  json all = json::array();
  for (const auto& [step, each] : distances)  // an infinite distance is written as null
    all.push_back({{"step", step}, {"distance", each.distance}, {"tolerance", each.tolerance}});
  return all;
}

json measured_json(const Compared& compared) {
  json tensors = json::array();
  for (const auto& each : compared.tensors)
    tensors.push_back({{"name", each.name}, {"distances", distances_json(each.distances)}});
  return {{"equation", diagnose::text_of(compared.line.equation).slug},
          {"to_the_bit", compared.to_the_bit},
          {"steps", compared.steps},
          {"only_a", compared.only_a},
          {"only_b", compared.only_b},
          {"distances", distances_json(compared.distances)},
          {"tensors", tensors}};
}

}  // namespace

std::string to_json(const Comparison& comparison, const std::string& a, const std::string& b) {
  std::vector<diagnose::Line> lines;
  json measured = json::array();
  for (const auto& each : comparison.ledger) {
    lines.push_back(each.line);
    measured.push_back(measured_json(each));
  }
  const auto run = [](const std::string& name, int ranks, std::int64_t updates) {
    return json{{"name", name}, {"ranks", ranks}, {"updates", updates}};
  };
  const auto& [first, until] = std::tie(comparison.first, comparison.agree_until);
  return json_text(json{{"schema_version", 2},
                        {"a", run(a, comparison.ranks_a, comparison.updates_a)},
                        {"b", run(b, comparison.ranks_b, comparison.updates_b)},
                        {"answer", to_string(comparison.answer)},
                        {"verdict", verdict_text(comparison)},
                        {"first", first ? json(diagnose::text_of(*first).slug) : json(nullptr)},
                        {"agree_until", until ? json(*until) : json(nullptr)},
                        {"unit", comparison.unit},
                        {"ledger", json::parse(diagnose::ledger_json(lines))},
                        {"measured", measured},
                        {"notes", comparison.notes}},
                   1) +
         "\n";
}

}  // namespace lockstep::compare
