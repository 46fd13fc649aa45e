#include <lockstep/compare/tolerance.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace lockstep::compare {
namespace {

double factor_of(Quantity quantity) {
  return quantity == Quantity::parameter ? 750 : 100;
}

// 0 where the dtype is not known.
double unit_of(const std::string& dtype) {
  static const std::map<std::string, int> bits = {{"double", 53},  {"float64", 53}, {"float", 24},
                                                  {"float32", 24}, {"half", 11},    {"float16", 11},
                                                  {"bfloat16", 8}};
  const auto short_name = dtype.substr(dtype.rfind('.') + 1);
  const auto found = bits.find(short_name);
  return found == bits.end() ? 0 : std::ldexp(1.0, -found->second);
}

double unit_of(const diagnose::Run& run) {
  double coarsest = 0;
  // A loss is scaled where gradients are float16.
  if (run.kinds.count(trace::ScaledStep::kName) > 0) coarsest = unit_of("float16");
  for (const auto* rank : run.ranks) {
    for (const auto& at : rank->all<trace::Model>())
      for (const auto& dtype : at.event->dtypes) coarsest = std::max(coarsest, unit_of(dtype));
    for (const auto& at : rank->all<trace::Configuration>()) {
      const auto& [of, keys, values] = *at.event;
      for (std::size_t i = 0; of == "engine" && i < keys.size(); ++i)
        if (keys[i] == "autocast" && values[i].find("float16") != std::string::npos)
          coarsest = std::max(
              coarsest,
              unit_of(values[i].find("bfloat16") != std::string::npos ? "bfloat16" : "float16"));
    }
  }
  return coarsest;
}

}  // namespace

double rounding_unit(const diagnose::Run& a, const diagnose::Run& b) {
  const auto unit = std::max(unit_of(a), unit_of(b));
  return unit > 0 ? unit : unit_of("float32");
}

double tolerance_of(Quantity quantity, double unit, std::int64_t step) {
  const auto updates = static_cast<double>(std::max<std::int64_t>(step, 0));
  return factor_of(quantity) * unit * (1 + updates);
}

double corner_tolerance() {
  return 0.03;
}

double metric_tolerance(double count) {
  constexpr double kSamples = 2;
  return count > 0 ? kSamples / count : 0;
}

}  // namespace lockstep::compare
