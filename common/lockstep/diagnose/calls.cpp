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

Calls without_ambiguous_groups(Calls calls) {
  for (const auto& group : ambiguous_groups(calls))
    std::erase_if(calls, [&](const auto& place) { return place.first.first == group; });
  return calls;
}

std::int64_t entered_ns(const std::vector<Call>& place) {
  return std::min_element(place.begin(), place.end(),
                          [](const auto& a, const auto& b) { return a.time_ns < b.time_ns; })
      ->time_ns;
}

std::vector<int> odd_ranks(const std::vector<Call>& place) {
  std::vector<int> numbers;
  std::vector<Signature> signatures;
  for (const auto& call : place) {
    numbers.push_back(call.rank);
    signatures.push_back(signature(*call.collective));
  }
  return odd_ones_out(numbers, signatures);
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
  // Of several the first in time is told: the others may follow from it.
  std::optional<Mismatch> first;
  const auto ambiguous = ambiguous_groups(calls);
  for (const auto& [key, place] : calls) {
    if (ambiguous.count(key.first)) continue;
    auto odd = odd_ranks(place);
    if (odd.empty() || (first && entered_ns(*first->calls) <= entered_ns(place))) continue;
    first = Mismatch{&place, std::move(odd)};
  }
  return first;
}

}  // namespace lockstep::diagnose
