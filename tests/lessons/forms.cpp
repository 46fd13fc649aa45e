#include "forms.h"

#include <lockstep/base/file.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

namespace lockstep::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::vector<FormCase> forms_of(const json& lesson) {
  const std::string name = lesson.at("name");
  std::map<std::string, FormCase> broken;
  for (const auto& form : lesson.at("forms")) {
    if (form.at("form") != "broken") continue;
    const std::string slug = form.at("name");
    const auto page = pages::read_page(LOCKSTEP_SOURCE_DIR, name, slug);
    broken[slug] = {.lesson = name,
                    .form = slug,
                    .broken = true,
                    .min_world_size = form.at("min_world_size"),
                    .needs_gpu = pages::facts_of(page, 2).needs_gpu,
                    .page = page};
  }
  std::vector<FormCase> all;
  for (const auto& form : lesson.at("forms")) {
    if (form.at("form") == "broken") {
      all.push_back(broken.at(form.at("name")));
      continue;
    }
    // A right form's oracles are those of the faults that it could have.
    FormCase right{
        .lesson = name, .form = form.at("name"), .min_world_size = 16, .needs_gpu = true};
    for (const auto& slug : form.at("judged_by")) {
      const auto& fault = broken.at(slug);
      right.min_world_size = std::min(right.min_world_size, fault.min_world_size);
      right.needs_gpu = right.needs_gpu && fault.needs_gpu;
    }
    right.min_world_size = std::max(right.min_world_size, form.at("min_world_size").get<int>());
    all.push_back(std::move(right));
  }
  return all;
}

}  // namespace

int FormCase::world_size() const {
  const int own = lesson == "01_single_device" ? 1 : 2;
  const auto on = page.facts.find("on");
  return std::max({own, min_world_size, on == page.facts.end() ? 0 : std::stoi(on->second)});
}

std::vector<FormCase> all_forms() {
  std::vector<fs::path> descriptions;
  for (const auto& entry : fs::directory_iterator(LOCKSTEP_DESCRIBED_FOLDER))
    if (entry.path().extension() == ".json") descriptions.push_back(entry.path());
  std::sort(descriptions.begin(), descriptions.end());
  std::vector<FormCase> all;
  for (const auto& file : descriptions)
    for (auto& form : forms_of(json::parse(read_file(file)))) all.push_back(std::move(form));
  return all;
}

}  // namespace lockstep::testing
