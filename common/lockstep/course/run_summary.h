// What runs came to, from their comparison reports: one line after a lesson, a few after many.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::course {

// "4 variants ended as expected, 7 were skipped.", of a report.
std::string verdict_on(const std::filesystem::path& report);

struct RunSummary {
  std::filesystem::path reports;         // the folder with a report of each lesson that ran
  std::vector<std::string> ran;          // lessons that wrote a report
  std::vector<std::string> skipped;      // lessons that could not start here, and said why
  std::vector<std::string> did_not_run;  // lessons that ended with an error, without a report
  double seconds = 0;
};

// How many variants ended as expected, which did not, which were skipped and why, how long it took, and where the
// reports are. `standard` is the folder that ./lockstep report reads when it is told of none.
void say_summary(const RunSummary& summary, const std::filesystem::path& standard);

}  // namespace lockstep::course
