#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/matrix/expected.h>

#include <nlohmann/json.hpp>
#include <numeric>

namespace lockstep::matrix {
namespace {

using nlohmann::json;

// A value, or one for each number of ranks; null where nothing is said.
json value_for(const json& value, int world_size) {
  if (!value.is_object()) return value;
  return value.value(std::to_string(world_size), json(nullptr));
}

}  // namespace

void fill_in_expected(Truth& truth, const std::filesystem::path& file, const std::string& lesson,
                      int world_size) {
  if (truth.pitfall.empty() || !std::filesystem::exists(file)) return;
  try {
    const auto forms = json::parse(read_file(file)).at("lessons").value(lesson, json::object());
    if (!forms.contains(truth.pitfall)) return;
    const auto& form = forms.at(truth.pitfall);
    const auto ranks = value_for(form.at("ranks"), world_size);
    const auto step = value_for(form.at("step"), world_size);
    if (ranks == "all") {
      truth.ranks.resize(static_cast<std::size_t>(world_size));
      std::iota(truth.ranks.begin(), truth.ranks.end(), 0);
    } else if (!ranks.is_null()) {
      truth.ranks = ranks.get<std::vector<int>>();
    }
    if (!step.is_null()) truth.step = step.get<std::int64_t>();
  } catch (const json::exception& error) {
    throw Error(file.string() + ": " + error.what());
  }
}

}  // namespace lockstep::matrix
