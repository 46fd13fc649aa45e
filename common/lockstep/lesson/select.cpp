#include <lockstep/base/error.h>
#include <lockstep/lesson/select.h>

namespace lockstep {

const Broken& broken_of(const Part& part, const std::string& slug) {
  for (const auto& broken : part.broken)
    if (broken.slug == slug) return broken;
  throw Error("the part " + part.name + " has no pitfall " + slug);
}

std::vector<Selected> select_forms(const Lesson& lesson, const std::string& variant) {
  std::vector<Selected> forms;
  for (const auto& part : lesson.parts) {
    Selected correct{
        &part, report::Form::correct, part.correct_name(lesson.parts.size() == 1), "", 1, {}};
    for (const auto& broken : part.broken) correct.judged_by.push_back(broken.slug);
    forms.push_back(correct);
    for (const auto& broken : part.broken)
      forms.push_back({&part,
                       report::Form::broken,
                       broken.slug,
                       broken.what,
                       broken.min_world_size,
                       {broken.slug},
                       broken.own_gpus});
    for (const auto& near : part.near_misses)
      forms.push_back({&part,
                       report::Form::near_miss,
                       near.name,
                       "naive check: " + near.naive_check,
                       broken_of(part, near.slug).min_world_size,
                       {near.slug}});
  }
  if (variant == "all") return forms;
  std::vector<Selected> chosen;
  std::string names;
  for (const auto& form : forms) {
    const bool all_correct = variant == "correct" && form.form == report::Form::correct;
    if (all_correct || form.name == variant) chosen.push_back(form);
    names += "\n  " + form.name;
  }
  if (chosen.empty())
    throw UsageError("there is no variant \"" + variant + "\" in " + lesson.name +
                     "; there are:" + names);
  return chosen;
}

}  // namespace lockstep
