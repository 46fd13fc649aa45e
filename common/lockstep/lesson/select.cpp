#include <lockstep/base/error.h>
#include <lockstep/lesson/select.h>

namespace lockstep {

const Broken& broken_of(const Part& part, const std::string& slug) {
  for (const auto& broken : part.broken)
    if (broken.slug == slug) return broken;
  throw Error("the part " + part.name + " has no pitfall " + slug);
}

std::vector<Selected> select_variants(const Lesson& lesson, const std::string& wanted) {
  std::vector<Selected> variants;
  for (const auto& part : lesson.parts) {
    Selected correct{
        &part, report::Kind::correct, part.correct_name(lesson.parts.size() == 1), "", 1, {}};
    for (const auto& broken : part.broken) correct.judged_by.push_back(broken.slug);
    variants.push_back(correct);
    for (const auto& broken : part.broken)
      variants.push_back({&part,
                          report::Kind::broken,
                          broken.slug,
                          broken.what,
                          broken.min_world_size,
                          {broken.slug},
                          broken.own_gpus,
                          broken.alone});
    for (const auto& near : part.near_misses)
      variants.push_back({&part,
                          report::Kind::near_miss,
                          near.name,
                          "naive check: " + near.naive_check,
                          broken_of(part, near.slug).min_world_size,
                          {near.slug},
                          false,
                          near.alone});
  }
  if (wanted == "all") return variants;
  std::vector<Selected> chosen;
  std::string names;
  for (const auto& variant : variants) {
    const bool all_correct = wanted == "correct" && variant.kind == report::Kind::correct;
    if (all_correct || variant.name == wanted) chosen.push_back(variant);
    names += "\n  " + variant.name;
  }
  if (chosen.empty())
    throw UsageError("there is no variant \"" + wanted + "\" in " + lesson.name +
                     "; there are:" + names);
  return chosen;
}

}  // namespace lockstep
