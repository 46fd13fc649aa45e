// What `run` says around one lesson's run: the idea before it, and after it what was seen and why.
#pragma once

#include <lockstep/course/lessons.h>

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::course {

// From the lesson's page: its aims, its idea and the prediction to make. Of a pitfall's run, `slug`, only the idea.
void say_before(const LessonEntry& lesson, const std::string& slug);

// From the comparison reports: each variant's figures by rank, expected against observed, and the diagnosis; then the
// answer, the pitfalls and the exercise. With a slug it is the pitfall's own page, and the fix as a diff.
void say_after(const LessonEntry& lesson, const std::vector<std::filesystem::path>& reports,
               const std::string& slug);

}  // namespace lockstep::course
