// Whether a form of a lesson that somebody mended is right: by the lesson's oracles, by the detectors, and beside the
// lesson's own correct form, so that work which was left out, or a figure that was written down, is no solution.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::course {

// One run of a correct form: where its lesson left the comparison report and the traces.
struct FormRun {
  std::filesystem::path report;  // JSON
  std::filesystem::path traces;  // the form's folder
};

// What is wrong with `mended`, in words for the person who mended it; empty where nothing is. `reference` is the
// lesson's own correct form on as many ranks with the same seed. Throws Error for what cannot be read.
std::vector<std::string> judge(const std::string& slug, const FormRun& mended,
                               const FormRun& reference);

}  // namespace lockstep::course
