// What a run of `lockstep prove` is to do, as python/lockstep_torch/proving/job.py writes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>

namespace lockstep::prove {

struct Plan {
  struct Tilt {
    double size;
    std::filesystem::path plain,
        probes;  // the folder of the run that is not moved; the directions' file
  };

  std::filesystem::path folder;  // for the ranks' files
  std::int64_t steps;            // updates, after which a rank ends
  int ranks;
  bool by_gloo;                                // whatever backend is asked for
  bool wide;                                   // in 64 bits
  bool saves;                                  // ends behind the first checkpoint
  std::optional<std::set<std::string>> still;  // places that draw the same for each row
  std::optional<Tilt> tilt;
  std::optional<std::filesystem::path> force;  // the folder of the run whose updates are made
  bool joins;                                  // one process is given the batches of all ranks
  bool swaps;                                  // ranks are given each other's
};

// Throws where the file is no plan.
Plan read_plan(const std::filesystem::path& file);

}  // namespace lockstep::prove
