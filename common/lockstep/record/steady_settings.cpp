#include <lockstep/record/steady_settings.h>

namespace lockstep::record {

trace::Configuration SteadySettings::look(const std::map<std::string, std::string>& settings) {
  constexpr int kTimes = 3;
  trace::Configuration steady{.of = "loss", .keys = {}, .values = {}};
  for (const auto& [key, value] : settings) {
    auto& seen = seen_[key];
    if (seen.times == 0) seen.value = value;
    seen.varies = seen.varies || seen.value != value;
    if (++seen.times != kTimes || seen.varies) continue;
    steady.keys.push_back(key);
    steady.values.push_back(value);
  }
  return steady;
}

}  // namespace lockstep::record
