#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/lesson/outcome.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using nlohmann::json;

// JSON has no NaN: nlohmann writes null, and this reads it back.
std::vector<double> numbers(const json& values) {
  std::vector<double> read;
  for (const auto& value : values)
    read.push_back(value.is_null() ? std::numeric_limits<double>::quiet_NaN()
                                   : value.get<double>());
  return read;
}

}  // namespace

void write_outcome(const std::filesystem::path& file, const Outcome& outcome) {
  const json text = {{"losses", outcome.losses},
                     {"reference_losses", outcome.reference_losses},
                     {"accuracy", outcome.accuracy},
                     {"figures", outcome.figures},
                     {"ids", outcome.ids}};
  write_file(file, text.dump());
}

Outcome read_outcome(const std::filesystem::path& file) {
  try {
    const auto text = json::parse(read_file(file));
    Outcome outcome;
    outcome.losses = numbers(text.at("losses"));
    outcome.reference_losses = numbers(text.at("reference_losses"));
    outcome.accuracy = numbers(text.at("accuracy"));
    for (const auto& [name, values] : text.at("figures").items())
      outcome.figures[name] = numbers(values);
    text.at("ids").get_to(outcome.ids);
    return outcome;
  } catch (const json::exception& error) {
    throw Error("not an outcome: " + file.string() + ": " + error.what());
  }
}

}  // namespace lockstep
