// `diagnose DIR` where DIR holds dumps of PyTorch's flight recorder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::course {

struct FlightOptions {
  std::optional<std::string> prefix;  // of the files' names, before the rank
  bool as_json = false;
};

// Prints what is wrong and gives back the program's exit code: 0 nothing, 1 a finding. Nothing is
// done, and nothing given back, where the folder holds traces of Lockstep's own (rank_*.trace) or
// no dumps. Throws UsageError for several folders, Error for what cannot be read.
std::optional<int> diagnose_flight_dumps(const std::vector<std::filesystem::path>& folders,
                                         const FlightOptions& options);

}  // namespace lockstep::course
