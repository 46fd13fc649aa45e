#include <lockstep/base/text.h>
#include <lockstep/flight/checks.h>
#include <lockstep/flight/words.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

namespace lockstep::flight {
namespace {

struct Standing {
  const Caller* caller;
  std::int64_t last;
};

// "; rank 1 did not: its last is all_reduce, sequence 4 (step at train.py:17)".
std::string what_they_did(const Names& names, const std::vector<Standing>& missing) {
  std::vector<int> ranks;
  for (const auto& each : missing) ranks.push_back(each.caller->rank);
  auto text = ranks_text(ranks) + " did not";
  const auto& one = missing.front();
  const auto whose = missing.size() == 1 ? "its" : "their";
  if (one.caller->collectives.empty())
    return text + (one.caller->dump->has_holes
                       ? std::string(": ") + whose + " dump holds no unfinished call of this group"
                       : std::string(": no call of this group is in ") + whose + " dump");
  const auto last = std::min(one.last, one.caller->collectives.back().sequence);
  const auto calls = one.caller->at(last);
  return text + ": " + whose + " last is sequence " + std::to_string(last) + ", " +
         call_text(names, calls) + call_site(names, calls);
}

// Whoever completed it has heard from every member.
bool needs_all(std::string_view operation) {
  constexpr std::array kNeedAll{"all_reduce", "allreduce",  "all_gather", "allgather",
                                "alltoall",   "all_to_all", "barrier",    "reduce_scatter"};
  return std::any_of(kNeedAll.begin(), kNeedAll.end(), [&](const char* name) {
    return operation.find(name) != std::string_view::npos;
  });
}

// The last collective of which somebody's record proves that all members called it; 0 where none does.
// A member whose dump does not have it was dumped earlier.
std::int64_t last_proven(const Names& names, const Group& group) {
  std::int64_t last = 0;
  for (const auto& caller : group.callers)
    for (const auto& entry : caller.collectives)
      if (entry.sequence > last && entry.state == State::completed &&
          needs_all(operation_of(names, entry)))
        last = entry.sequence;
  return last;
}

}  // namespace

std::optional<std::int64_t> last_called(const Group& group, const Caller& caller) {
  if (!caller.collectives.empty()) return caller.collectives.back().sequence;
  if (caller.dump->is_cut) return std::nullopt;
  if (!caller.dump->has_holes) return 0;
  // All that it called is complete, so it is before everything that others still wait in.
  auto first = std::numeric_limits<std::int64_t>::max();
  for (const auto& other : group.callers)
    if (!other.collectives.empty()) first = std::min(first, other.collectives.front().sequence);
  return first - 1;
}

std::optional<diagnose::Finding> find_missing(const Names& names, const Group& group) {
  std::vector<Standing> standings;
  const auto proven = last_proven(names, group);
  for (const auto& caller : group.callers)
    if (const auto last = last_called(group, caller))
      standings.push_back({&caller, std::max(*last, proven)});
  if (standings.empty()) return std::nullopt;
  const auto [low, high] =
      std::minmax_element(standings.begin(), standings.end(),
                          [](const Standing& a, const Standing& b) { return a.last < b.last; });
  if (low->last == high->last) return std::nullopt;

  const auto sequence = low->last + 1;
  std::vector<Standing> missing;
  std::vector<int> joined, behind;
  std::span<const Entry> calls;
  for (const auto& standing : standings) {
    if (standing.last < sequence) {
      missing.push_back(standing);
      continue;
    }
    joined.push_back(standing.caller->rank);
    if (standing.last < high->last) behind.push_back(standing.caller->rank);
    if (calls.empty()) calls = standing.caller->at(sequence);
  }

  diagnose::Finding finding;
  finding.pitfall = "no-progress";
  finding.sequence = sequence;
  for (const auto& each : missing) finding.ranks.push_back(each.caller->rank);
  if (calls.empty()) {
    finding.evidence = ranks_text(joined, "has", "have") + " gone on to sequence " +
                       std::to_string(high->last) + ", and what " + std::to_string(sequence) +
                       " was is overwritten; ";
  } else {
    finding.evidence = ranks_text(joined) + " called" + " " + call_text(names, calls) +
                       call_site(names, calls) + "; ";
  }
  finding.evidence += what_they_did(names, missing) + ".";
  if (!behind.empty())
    finding.evidence += " Later " + ranks_text(behind, "falls", "fall") +
                        " behind, too: the furthest is at sequence " + std::to_string(high->last) +
                        ".";
  return finding;
}

}  // namespace lockstep::flight
