// What `run` says around one lesson's run: the story before it, and after it what was seen and why.
#pragma once

#include <lockstep/course/lessons.h>

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::course {

// Story and question, from the lesson's page.
void say_before(const LessonEntry& lesson);

// From the comparison reports: each variant's figures by rank, expected against observed, and the diagnosis; then why, the
// fix and what to try. With a slug it is the pitfall's own page, and the fix as a diff.
void say_after(const LessonEntry& lesson, const std::vector<std::filesystem::path>& reports,
               const std::string& slug);

}  // namespace lockstep::course
