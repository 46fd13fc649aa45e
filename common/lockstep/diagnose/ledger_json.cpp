#include <lockstep/base/json_text.h>
#include <lockstep/diagnose/ledger.h>

#include <nlohmann/json.hpp>

namespace lockstep::diagnose {

std::string ledger_json(const std::vector<Line>& ledger) {
  auto lines = nlohmann::json::array();
  for (const auto& line : ledger) {
    const auto& text = text_of(line.equation);
    nlohmann::json one = {{"equation", text.slug},
                          {"sentence", text.sentence},
                          {"per", text.per},
                          {"standing", to_string(line.standing)}};
    if (!line.looked_at.empty()) one["looked_at"] = line.looked_at;
    if (!line.reason.empty()) one["reason"] = line.reason;
    if (line.standing == Standing::broken) {
      one["broken_by"] = line.broken_by;
      one["after"] = line.after;
      one["evidence"] = line.evidence;
    }
    if (line.standing == Standing::broken || !line.ranks.empty()) {
      one["ranks"] = line.ranks;
      one["step"] = line.step;
    }
    if (line.apart)
      one["apart"] = {{"a", line.apart->a},
                      {"b", line.apart->b},
                      {"distance", line.apart->distance},
                      {"tolerance", line.apart->tolerance}};
    lines.push_back(std::move(one));
  }
  return json_text(lines);
}

}  // namespace lockstep::diagnose
