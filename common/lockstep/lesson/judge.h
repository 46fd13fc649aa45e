// Judges a run by what its ranks left: what the oracles measured, what the detectors named.
#pragma once

#include <lockstep/lesson/command_line.h>
#include <lockstep/lesson/select.h>
#include <lockstep/report/lesson_report.h>

#include <cstdint>
#include <filesystem>

namespace lockstep {

// A variant, and a comparison, with what is known before anything has run.
report::Variant variant_of(const Selected& selected, int world_size);
report::LessonReport comparison_here(const Lesson& lesson, const LessonOptions& options);

// Fills in a variant's losses, oracles, findings and pictures from the files that its `ranks` left in `folder`.
void judge_run(const Selected& selected, const std::filesystem::path& folder, int ranks,
               std::uint64_t seed, report::Variant& variant);

}  // namespace lockstep
