// Generic: ranks that did not call the same collective.
#include <lockstep/diagnose/detectors.h>
#include <lockstep/diagnose/evidence.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace lockstep::diagnose {
namespace {

bool is_point_to_point(const trace::Collective& call) {
  return call.op.find("send") != std::string::npos || call.op.find("recv") != std::string::npos;
}

// Not a reduce_scatter: what is recorded of it are the parts, which may be unequal.
bool needs_equal_sizes(const trace::Collective& call) {
  const auto is = [&](const char* op) { return call.op.find(op) != std::string::npos; };
  return (is("reduce") && !is("reduce_scatter")) || is("broadcast");
}

using Signature =
    std::tuple<std::string, std::string, std::int64_t, std::string, std::vector<std::int64_t>>;

Signature signature(const trace::Collective& call) {
  return {call.op, call.reduce_op, call.root, call.dtype,
          needs_equal_sizes(call) ? call.sizes : std::vector<std::int64_t>{}};
}

std::string describe(const trace::Collective& call) {
  std::string text = call.op;
  if (!call.reduce_op.empty()) text += " " + call.reduce_op;
  if (!call.dtype.empty()) text += " " + call.dtype;
  for (const auto size : call.sizes) text += " " + std::to_string(size);
  if (call.root >= 0) text += " root " + std::to_string(call.root);
  return text;
}

struct Call {
  int rank;
  std::int64_t step;
  std::int64_t time_ns;
  const trace::Collective* collective;
};

using Calls = std::map<std::pair<std::string, std::int64_t>, std::vector<Call>>;

// Groups in which one rank has a sequence twice: several groups under one name, or one that began
// anew. Which of their calls belong together cannot be told.
std::set<std::string> ambiguous_groups(const Calls& calls) {
  std::set<std::string> groups;
  for (const auto& [key, of_sequence] : calls) {
    std::set<int> ranks;
    for (const auto& call : of_sequence)
      if (!ranks.insert(call.rank).second) groups.insert(key.first);
  }
  return groups;
}

std::string all_of(const std::vector<Call>& calls) {
  std::string text;
  for (const auto& call : calls)
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(call.rank) + ": " +
            describe(*call.collective);
  return text;
}

}  // namespace

Verdict collective_mismatch(const trace::Trace& trace) {
  const Run run(trace);
  if (run.world_size < 2) return not_applicable("one rank has nobody to agree with");
  Calls calls;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<trace::Collective>())
      if (!is_point_to_point(*at.event))
        calls[{at.event->group, at.event->sequence}].push_back(
            {rank->participant.rank, at.step, at.time_ns, at.event});
  if (calls.empty()) return not_triggered("no collective was recorded");

  const auto ambiguous = ambiguous_groups(calls);

  // Of several mismatches the first in time is told: the others may follow from it.
  const std::vector<Call>* first = nullptr;
  std::vector<int> first_odd;
  for (const auto& [key, ranks] : calls) {
    if (ambiguous.count(key.first)) continue;
    std::vector<int> numbers;
    std::vector<Signature> signatures;
    for (const auto& call : ranks) {
      numbers.push_back(call.rank);
      signatures.push_back(signature(*call.collective));
    }
    auto odd = odd_ones_out(numbers, signatures);
    if (odd.empty() || (first && first->front().time_ns <= ranks.front().time_ns)) continue;
    first = &ranks;
    first_odd = std::move(odd);
  }
  if (!first && !ambiguous.empty())
    return not_triggered("a rank has a group's sequence twice: which calls meet cannot be told");
  if (!first) return clean();
  const auto& call = first->front();
  return found({.pitfall = "collective-mismatch",
                .ranks = first_odd,
                .step = call.step,
                .sequence = call.collective->sequence,
                .evidence = "at sequence " + std::to_string(call.collective->sequence) +
                            " the ranks called different collectives: " + all_of(*first)});
}

}  // namespace lockstep::diagnose
