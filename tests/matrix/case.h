// A case that is made by hand: what two ranks recorded, and its truth.
#pragma once

#include <lockstep/matrix/cases.h>
#include <lockstep/trace/writer.h>

#include <optional>
#include <string>

namespace lockstep::matrix {

// Two ranks that each were given a data set, of the same contents or of `other` contents on rank 1: what
// dataset-unseeded is. The truth is what the caller says. Without data nothing can be looked for.
struct CaseOptions {
  std::string pitfall = {};  // "" = healthy
  std::uint64_t other = 7;   // 7: the same as rank 0's
  std::vector<int> ranks = {0, 1};
  bool with_data = true;
  bool applicable = true;
};

inline Case make_case(const std::filesystem::path& top, const std::string& name,
                      const CaseOptions& options) {
  const auto folder = top / name;
  std::filesystem::create_directories(folder);
  for (int rank = 0; rank < 2; ++rank) {
    trace::Writer writer(folder, {rank, 2, "process"});
    if (!options.with_data) continue;
    trace::Dataset data{"train", 8, 8, 1, 2, rank == 0 ? 7 : options.other};
    writer.record(data);
  }
  const Truth truth{name, "03", options.pitfall, options.ranks, std::nullopt, options.applicable};
  write_truth(folder, truth);
  return {truth, folder};
}

}  // namespace lockstep::matrix
