#include <lockstep/base/file.h>
#include <lockstep/lesson/truth.h>

#include <nlohmann/json.hpp>

namespace lockstep {

void write_truth(const std::filesystem::path& folder, const Truth& truth) {
  using nlohmann::json;
  json text = {{"schema_version", 2}, {"name", truth.name}, {"class", truth.group}};
  if (truth.pitfall.empty()) {
    text["kind"] = "benign";
  } else {
    text["kind"] = "fault";
    text["names"] = {truth.pitfall};
    text["ranks"] = truth.ranks.empty() ? json(nullptr) : json(truth.ranks);
    text["step"] = truth.step ? json(*truth.step) : json(nullptr);
  }
  write_file(folder / "truth.json", text.dump(2) + "\n");
}

}  // namespace lockstep
