#include <lockstep/base/error.h>
#include <lockstep/base/text.h>
#include <lockstep/compare/compare.h>
#include <lockstep/trace/attempts.h>

namespace lockstep::compare {
namespace {

// What cannot be read is a wrong argument here: 3 says that two traces leave it open.
trace::Trace read(const std::filesystem::path& folder) {
  try {
    return trace::read_job(folder);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

std::vector<int> ranks_of(const trace::Trace& trace) {
  std::vector<int> ranks;
  for (const auto& rank : trace.ranks) ranks.push_back(rank.participant.rank);
  return ranks;
}

// A part of a run can only be compared with the same part of another one.
void check_ranks(const std::filesystem::path& folder, const trace::Trace& run,
                 const trace::Trace& other) {
  const auto ranks = ranks_of(run);
  if (static_cast<int>(ranks.size()) == run.world_size || ranks == ranks_of(other)) return;
  throw UsageError(folder.string() + " holds the traces of " + ranks_text(ranks) + " only, of " +
                   plural(run.world_size, "rank") + ": put those of the others beside them");
}

}  // namespace

Comparison compare_folders(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code none;
  if (std::filesystem::equivalent(a, b, none))
    throw UsageError(a.string() + " and " + b.string() + " are one folder; name two runs");
  const auto of_a = read(a), of_b = read(b);
  check_ranks(a, of_a, of_b);
  check_ranks(b, of_b, of_a);
  return compare(of_a, of_b);
}

}  // namespace lockstep::compare
