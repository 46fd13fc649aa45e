#include "variants.h"

#include <lockstep/base/file.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../support/checkout.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::vector<LessonVariant> variants_of(const json& lesson) {
  const std::string name = lesson.at("name");
  std::map<std::string, LessonVariant> broken;
  for (const auto& variant : lesson.at("variants")) {
    if (variant.at("kind") != "broken") continue;
    const std::string slug = variant.at("name");
    const auto page = report::read_page(in_checkout(""), name, slug);
    broken[slug] = {.lesson = name,
                    .name = slug,
                    .broken = true,
                    .min_world_size = variant.at("min_world_size"),
                    .telling = variant.at("min_world_size"),
                    .needs_gpu = report::facts_of(page, 2).needs_gpu,
                    .page = page};
  }
  std::vector<LessonVariant> all;
  for (const auto& variant : lesson.at("variants")) {
    if (variant.at("kind") == "broken") {
      all.push_back(broken.at(variant.at("name")));
      continue;
    }
    // A right variant's oracles are those of the faults that it could have.
    LessonVariant right{.lesson = name,
                        .name = variant.at("name"),
                        .min_world_size = variant.at("min_world_size"),
                        .telling = variant.at("min_world_size")};
    std::vector<int> telling;
    int on_gpus = 0;
    for (const auto& slug : variant.at("judged_by")) {
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

int LessonVariant::world_size() const {
  const int own = lesson == "01_single_device" ? 1 : 2;
  return std::max({own, telling, report::facts_of(page, own).on});
}

std::vector<LessonVariant> all_variants(const std::string& lessons) {
  std::vector<LessonVariant> all;
  std::istringstream names(lessons);
  for (std::string name; names >> name;) {
    const auto file = fs::path(LOCKSTEP_DESCRIBED_FOLDER) / (name + ".json");
    for (auto& variant : variants_of(json::parse(read_file(file))))
      all.push_back(std::move(variant));
  }
  return all;
}

}  // namespace lockstep::testing
