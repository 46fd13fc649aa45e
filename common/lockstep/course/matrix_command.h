// ./lockstep matrix: scores a checker on recorded runs whose truth is known.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::course {

struct MatrixOptions {
  std::vector<std::filesystem::path> folders;  // with cases in or below them
  std::string checker;                         // a command; "" = our own detectors
  int deadline_s = 60;                         // of the command, for each case
  std::filesystem::path json;                  // "" = no file
  int level = 2;                 // of our own detectors: what they are shown (trace/levels.h)
  std::filesystem::path beside;  // what evaluation/pytorch_means measured; "" = no such columns
};

// Prints a line for each case and the totals. Whether nothing is wrong. Throws UsageError, and Error for what cannot
// be read, a checker that cannot be started, and cases of which none could be scored.
bool score_checker(const MatrixOptions& options);

}  // namespace lockstep::course
