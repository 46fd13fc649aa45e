#include "forms.h"

#include <lockstep/base/file.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

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
                    .telling = form.at("min_world_size"),
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
    FormCase right{.lesson = name,
                   .form = form.at("name"),
                   .min_world_size = form.at("min_world_size"),
                   .telling = form.at("min_world_size")};
    std::vector<int> telling;
    int on_gpus = 0;
    for (const auto& slug : form.at("judged_by")) {
      telling.push_back(broken.at(slug).telling);
      on_gpus += broken.at(slug).needs_gpu;
    }
    if (!telling.empty()) {
      const auto least = *std::min_element(telling.begin(), telling.end());
      right.telling = std::max(right.telling, least);
      right.needs_gpu = on_gpus == static_cast<int>(telling.size());
    }
    all.push_back(std::move(right));
  }
  return all;
}

}  // namespace

int FormCase::world_size() const {
  const int own = lesson == "01_single_device" ? 1 : 2;
  return std::max({own, telling, pages::facts_of(page, own).on});
}

std::vector<FormCase> all_forms(const std::string& lessons) {
  std::vector<FormCase> all;
  std::istringstream names(lessons);
  for (std::string name; names >> name;) {
    const auto file = fs::path(LOCKSTEP_DESCRIBED_FOLDER) / (name + ".json");
    for (auto& form : forms_of(json::parse(read_file(file)))) all.push_back(std::move(form));
  }
  return all;
}

}  // namespace lockstep::testing
