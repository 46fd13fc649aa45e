#include <lockstep/diagnose/calls.h>

#include <algorithm>

namespace lockstep::diagnose {
namespace {

// Not a reduce_scatter: what is recorded of it are the parts, which may be unequal.
bool needs_equal_sizes(const trace::Collective& call) {
  const auto is = [&](const char* op) { return call.op.find(op) != std::string::npos; };
  return (is("reduce") && !is("reduce_scatter")) || is("broadcast");
}

}  // namespace

bool is_point_to_point(const trace::Collective& call) {
  return call.op.find("send") != std::string::npos || call.op.find("recv") != std::string::npos;
}

Calls calls_of(const Run& run) {
  Calls calls;
  for (const auto* rank : run.ranks)
    for (std::size_t i = rank->last_attempt; i < rank->events.size(); ++i) {
      const auto& event = rank->events[i];
      const auto* call = std::get_if<trace::Collective>(&event.payload);
      if (call != nullptr && !is_point_to_point(*call))
        calls[{call->group, call->sequence}].push_back(
            {rank->participant.rank, event.step, event.time_ns, call});
    }
  return calls;
}

std::set<std::string> ambiguous_groups(const Calls& calls) {
  std::set<std::string> groups;
  for (const auto& [key, of_sequence] : calls) {
    std::set<int> ranks;
    for (const auto& call : of_sequence)
      if (!ranks.insert(call.rank).second) groups.insert(key.first);
  }
  return groups;
}

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

std::string numbered(const trace::Collective& call) {
  return call.op + " number " + std::to_string(call.sequence);
}

std::string describe_all(const std::vector<Call>& calls) {
  std::string text;
  for (const auto& call : calls)
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(call.rank) + ": " +
            describe(*call.collective);
  return text;
}

std::optional<Mismatch> first_mismatch(const Calls& calls) {
  const auto ambiguous = ambiguous_groups(calls);
  // Of several the first in time is told: the others may follow from it.
  std::optional<Mismatch> first;
  std::int64_t first_ns = 0;
  for (const auto& [key, ranks] : calls) {
    if (ambiguous.count(key.first)) continue;
    std::vector<int> numbers;
    std::vector<Signature> signatures;
    for (const auto& call : ranks) {
      numbers.push_back(call.rank);
      signatures.push_back(signature(*call.collective));
    }
    auto odd = odd_ones_out(numbers, signatures);
    if (odd.empty()) continue;
    const auto entered = std::min_element(ranks.begin(), ranks.end(), [](auto& a, auto& b) {
                           return a.time_ns < b.time_ns;
                         })->time_ns;
    if (first && first_ns <= entered) continue;
    first = Mismatch{&ranks, std::move(odd)};
    first_ns = entered;
  }
  return first;
}

}  // namespace lockstep::diagnose
