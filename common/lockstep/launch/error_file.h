// What a rank writes about its own end, and the supervisor reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::launch {

struct ReportedError {
  std::string type;            // the exception's class, as C++ spells it
  std::string text;            // what()
  bool collective = false;     // a CollectiveError
  std::int64_t raised_ns = 0;  // monotonic_ns() when it was reported
};

// The report in `path`; nothing when there is none or it is not one (a rank may write there what it
// likes, and its end must still be told).
std::optional<ReportedError> read_error_file(const std::filesystem::path& path);

}  // namespace lockstep::launch
