#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/matrix/cases.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lockstep::matrix {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int kTruthVersion = 1;
constexpr const char* kFile = "truth.json";

Truth parse_truth(const json& text) {
  if (const int version = text.at("schema_version"); version != kTruthVersion)
    throw Error("schema_version is " + std::to_string(version) + ", and must be " +
                std::to_string(kTruthVersion));
  Truth truth;
  truth.name = text.at("name");
  truth.family = text.at("family");
  if (!text.at("pitfall").is_null()) truth.pitfall = text.at("pitfall");
  if (!text.at("ranks").is_null()) truth.ranks = text.at("ranks").get<std::vector<int>>();
  if (!text.at("step").is_null()) truth.step = text.at("step").get<std::int64_t>();
  truth.applicable = text.at("applicable");
  return truth;
}

Truth read_truth(const fs::path& file) {
  try {
    return parse_truth(json::parse(read_file(file)));
  } catch (const std::exception& error) {
    throw Error(file.string() + ": " + error.what());
  }
}

}  // namespace

void write_truth(const fs::path& folder, const Truth& truth) {
  const auto or_null = [](bool there, const json& value) { return there ? value : json(nullptr); };
  const json text = {{"schema_version", kTruthVersion},
                     {"name", truth.name},
                     {"family", truth.family},
                     {"pitfall", or_null(!truth.pitfall.empty(), truth.pitfall)},
                     {"ranks", or_null(!truth.ranks.empty(), truth.ranks)},
                     {"step", truth.step ? json(*truth.step) : json(nullptr)},
                     {"applicable", truth.applicable}};
  write_file(folder / kFile, text.dump(2) + "\n");
}

std::vector<Case> find_cases(const std::vector<fs::path>& folders) {
  std::vector<Case> cases;
  for (const auto& folder : folders) {
    if (!fs::is_directory(folder)) throw Error("there is no folder " + folder.string());
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.path().filename() == kFile)
        cases.push_back({read_truth(entry.path()), entry.path().parent_path()});
  }
  if (cases.empty())
    throw Error("no truth.json in or below " + folders.front().string() +
                ": ./lockstep run all --trace FOLDER makes one for each variant");
  std::sort(cases.begin(), cases.end(),
            [](const Case& a, const Case& b) { return a.truth.name < b.truth.name; });
  for (std::size_t i = 1; i < cases.size(); ++i)
    if (cases[i].truth.name == cases[i - 1].truth.name)
      throw UsageError("two cases are called " + cases[i].truth.name + ": " +
                       cases[i - 1].folder.string() + " and " + cases[i].folder.string());
  return cases;
}

Families families_of(const std::vector<Case>& cases) {
  Families families;
  for (const auto& one : cases)
    if (!one.truth.pitfall.empty()) families[one.truth.pitfall] = one.truth.family;
  return families;
}

}  // namespace lockstep::matrix
