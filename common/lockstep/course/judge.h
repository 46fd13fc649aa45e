// Whether a variant of a lesson that somebody mended is right: by the lesson's oracles, by the detectors, and beside the
// lesson's own correct variant, so that work which was left out, or a figure that was written down, is no solution.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::course {

// One run of a correct variant: where its lesson left the comparison report and the traces.
struct VariantRun {
  std::filesystem::path report;  // JSON
  std::filesystem::path traces;  // the variant's folder
};

// What is wrong with `mended`, in words for the person who mended it; empty where nothing is. `reference` is the
// lesson's own correct variant on as many ranks with the same seed. Throws Error for what cannot be read.
std::vector<std::string> judge(const std::string& slug, const VariantRun& mended,
                               const VariantRun& reference);

}  // namespace lockstep::course
