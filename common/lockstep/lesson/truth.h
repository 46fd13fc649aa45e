// What is known of a recorded run, by its program and its oracle: truth.json beside its traces
// (reports/schema/truth.schema.json), by which evaluation/recorded_runs.py scores checkers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct Truth {
  std::string name;                  // of the run
  std::string group;                 // "class" in the file
  std::string pitfall;               // the slug; "" = a right run
  std::vector<int> ranks;            // those at fault; empty = not said
  std::optional<std::int64_t> step;  // the first at which it can be seen; nothing = not said
};

void write_truth(const std::filesystem::path& folder, const Truth& truth);

}  // namespace lockstep
