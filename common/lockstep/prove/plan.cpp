#include <lockstep/prove/plan.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace lockstep::prove {

Plan read_plan(const std::filesystem::path& file) {
  const auto json = nlohmann::json::parse(std::ifstream(file));
  Plan plan{.folder = json.at("folder").get<std::string>(),
            .steps = json.at("steps"),
            .ranks = json.at("ranks"),
            .by_gloo = json.at("device") == "cpu",
            .wide = json.at("wide"),
            .saves = json.at("saves"),
            .still = {},
            .tilt = {},
            .force = {},
            .joins = !json.at("batches").is_null() && !json.at("swaps").get<bool>(),
            .swaps = json.at("swaps")};
  if (const auto& still = json.at("still"); !still.is_null())
    plan.still = still.get<std::set<std::string>>();
  if (const auto& tilt = json.at("tilt"); !tilt.is_null())
    plan.tilt = {tilt.at("size"), tilt.at("plain").get<std::string>(),
                 tilt.at("probes").get<std::string>()};
  if (const auto& force = json.at("force"); !force.is_null()) plan.force = force.get<std::string>();
  return plan;
}

}  // namespace lockstep::prove
