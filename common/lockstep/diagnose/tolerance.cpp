#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace lockstep::diagnose {
namespace {

// 0 where the dtype is not known.
double unit_of(const std::string& dtype) {
  static const std::map<std::string, int> bits = {{"double", 53},  {"float64", 53}, {"float", 24},
                                                  {"float32", 24}, {"half", 11},    {"float16", 11},
                                                  {"bfloat16", 8}};
  const auto short_name = dtype.substr(dtype.rfind('.') + 1);
  const auto found = bits.find(short_name);
  return found == bits.end() ? 0 : std::ldexp(1.0, -found->second);
}

double coarsest_unit(const Run& run) {
  double coarsest = 0;
  // A loss is scaled where gradients are float16.
  if (run.kinds.count(trace::ScaledStep::kName) > 0) coarsest = unit_of("float16");
  for (const auto* rank : run.ranks) {
    for (const auto& at : rank->all<trace::Model>())
      for (const auto& dtype : at.event->dtypes) coarsest = std::max(coarsest, unit_of(dtype));
    each_setting(rank->all<trace::Settings>(), trace::SettingsOf::engine,
                 [&](const std::string& key, const std::string& value) {
                   if (key != "autocast") return;
                   for (const auto* narrow : {"bfloat16", "float16"})
                     if (value.find(narrow) != std::string::npos) {
                       coarsest = std::max(coarsest, unit_of(narrow));
                       return;
                     }
                 });
  }
  return coarsest;
}

}  // namespace

double rounding_unit(const Run& a, const Run& b) {
  const auto unit = std::max(coarsest_unit(a), coarsest_unit(b));
  return unit > 0 ? unit : unit_of("float32");
}

double tolerance_of(Quantity quantity, double unit, std::int64_t step) {
  const auto updates = static_cast<double>(std::max<std::int64_t>(step, 0));
  return (quantity == Quantity::parameter ? 750 : 100) * unit * (1 + updates);
}

double metric_tolerance(double count) {
  return count > 0 ? 2 / count : 0;
}

}  // namespace lockstep::diagnose
