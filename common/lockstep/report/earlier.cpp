#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/report/earlier.h>

#include <nlohmann/json.hpp>

namespace lockstep::report {

std::map<std::string, double> seconds_by_variant(const std::filesystem::path& report) {
  std::map<std::string, double> seconds;
  std::error_code none;
  if (!std::filesystem::is_regular_file(report, none)) return seconds;
  try {
    const auto json = nlohmann::json::parse(read_file(report));
    for (const auto& variant : json.at("variants"))
      if (variant.at("outcome") != "skipped")
        seconds[variant.at("name").get<std::string>()] =
            variant.at("timings").at("seconds").get<double>();
    return seconds;
  } catch (const nlohmann::json::exception&) {
    return {};
  } catch (const Error&) {
    return {};
  }
}

}  // namespace lockstep::report
