#include <lockstep/base/json_text.h>
#include <lockstep/report/finding.h>
#include <lockstep/report/json.h>

#include <nlohmann/json.hpp>

namespace lockstep::report {
namespace {

using nlohmann::json;

json to_json(const Stall::Call& call) {
  if (call.operation.empty()) return nullptr;
  return {{"operation", call.operation}, {"sequence", call.sequence}, {"group", call.group}};
}

json to_json(const Stall::Rank& rank) {
  return {{"rank", rank.rank},           {"state", rank.state},        {"to_blame", rank.to_blame},
          {"here", to_json(rank.here)},  {"last", to_json(rank.last)}, {"ended", rank.ended},
          {"exit_code", rank.exit_code}, {"signal", rank.signal}};
}

json to_json(const Pictures::Apart& apart) {
  return {{"step", apart.step}, {"distance", apart.distance}};
}

json to_json(const Pictures::Call& call) {
  json result = {{"rank", call.rank},   {"sequence", call.sequence},   {"op", call.operation},
                 {"group", call.group}, {"entered_s", call.entered_s}, {"left_s", nullptr}};
  if (call.left_s) result["left_s"] = *call.left_s;
  if (call.failed) result["failed"] = true;
  return result;
}

json to_json(const std::optional<Pictures::Difference>& first) {
  if (!first) return nullptr;
  return {{"group", first->group}, {"sequence", first->sequence}, {"ranks", first->ranks}};
}

json to_json(const Pictures::Pass& pass) {
  return {{"phase", "train"},
          {"epoch", pass.epoch},
          {"samples", pass.samples},
          {"every", pass.every},
          {"ranks", pass.drawn}};
}

template <class T>
json list_of(const std::vector<T>& values) {
  json items = json::array();
  for (const auto& value : values) items.push_back(to_json(value));
  return items;
}

}  // namespace

std::string findings_json(const std::vector<diagnose::Finding>& findings) {
  std::string items;
  for (const auto& finding : findings) items += (items.empty() ? "" : ",") + to_json(finding);
  return "[" + items + "]";
}

std::string stall_json(const std::optional<Stall>& stall) {
  if (!stall) return "null";
  return json_text<json>({{"operation", stall->operation},
                          {"sequence", stall->sequence},
                          {"group", stall->group},
                          {"step", stall->step},
                          {"ranks", list_of(stall->ranks)}});
}

std::string pictures_json(const Pictures& pictures) {
  return json_text<json>({{"divergence", list_of(pictures.divergence)},
                          {"tolerance", pictures.tolerance},
                          {"timeline",
                           {{"calls", list_of(pictures.calls)},
                            {"truncated", pictures.truncated},
                            {"first_difference", to_json(pictures.first_difference)}}},
                          {"owners", list_of(pictures.passes)}});
}

}  // namespace lockstep::report
