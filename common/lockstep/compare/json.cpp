#include <lockstep/base/json_text.h>
#include <lockstep/compare/compare.h>

#include <nlohmann/json.hpp>

namespace lockstep::compare {
namespace {

using nlohmann::json;

json difference_json(const std::optional<Difference>& difference) {
  if (!difference) return nullptr;
  return {{"step", difference->step},
          {"ranks", difference->ranks},
          {"what", difference->what},
          {"a", difference->a},
          {"b", difference->b},
          {"distance", difference->distance},
          {"tolerance", difference->tolerance}};
}

json distances_json(const std::vector<AspectResult::Distance>& distances) {
  json all = json::array();
  for (const auto& each : distances)  // an infinite distance is written as null
    all.push_back(
        {{"step", each.step}, {"distance", each.distance}, {"tolerance", each.tolerance}});
  return all;
}

json aspect_json(const AspectResult& aspect) {
  json tensors = json::array();
  for (const auto& each : aspect.tensors)
    tensors.push_back({{"name", each.name}, {"distances", distances_json(each.distances)}});
  return {{"aspect", to_string(aspect.aspect)},
          {"in_a", aspect.in_a},
          {"in_b", aspect.in_b},
          {"relation", to_string(aspect.relation)},
          {"steps", aspect.steps},
          {"only_a", aspect.only_a},
          {"only_b", aspect.only_b},
          {"differing_steps", aspect.differing_steps},
          {"more", aspect.more},
          {"first", difference_json(aspect.first)},
          {"distances", distances_json(aspect.distances)},
          {"tensors", tensors}};
}

}  // namespace

std::string to_json(const Comparison& comparison, const std::string& a, const std::string& b) {
  json aspects = json::array();
  for (const auto& aspect : comparison.aspects) aspects.push_back(aspect_json(aspect));
  const auto run = [](const std::string& name, int ranks, std::int64_t updates) {
    return json{{"name", name}, {"ranks", ranks}, {"updates", updates}};
  };
  return json_text(
             json{{"schema_version", 1},
                  {"a", run(a, comparison.ranks_a, comparison.updates_a)},
                  {"b", run(b, comparison.ranks_b, comparison.updates_b)},
                  {"answer", to_string(comparison.answer)},
                  {"verdict", verdict_text(comparison)},
                  {"first", comparison.first ? json(to_string(*comparison.first)) : json(nullptr)},
                  {"agree_until",
                   comparison.agree_until ? json(*comparison.agree_until) : json(nullptr)},
                  {"unit", comparison.unit},
                  {"aspects", aspects},
                  {"notes", comparison.notes}},
             1) +
         "\n";
}

}  // namespace lockstep::compare
