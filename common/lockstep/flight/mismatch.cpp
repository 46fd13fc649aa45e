#include <lockstep/base/hash.h>
#include <lockstep/base/text.h>
#include <lockstep/flight/checks.h>
#include <lockstep/flight/words.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

namespace lockstep::flight {
namespace {

constexpr std::size_t kMostForms = 4;  // told of

// What of an operation must be equal on all ranks. Only the root has all tensors of a scatter or a
// gather, and each rank splits an all_to_all its own way.
struct Compared {
  bool input_sizes = true, output_sizes = true, input_dtypes = true, output_dtypes = true;
};
Compared compared(std::string_view operation) {
  if (operation.starts_with("all_to_all") || operation.starts_with("alltoall"))
    return {.input_sizes = false, .output_sizes = false};
  if (operation.starts_with("scatter")) return {.input_sizes = false, .input_dtypes = false};
  if (operation.starts_with("gather")) return {.output_sizes = false, .output_dtypes = false};
  if (operation.starts_with("broadcast")) return {.input_dtypes = false};
  return {};
}

enum class Level { operation, sizes, dtype };  // how closely calls are compared

// One rank's calls at one sequence, as far as they are compared. Most have one.
using Signature = std::vector<NameId>;
Signature signature(const Names& names, std::span<const Entry> calls, Level level) {
  Signature result;
  for (const auto& call : calls) {
    const auto what = compared(operation_of(names, call));
    result.push_back(call.operation);
    if (level == Level::operation) continue;
    result.push_back(what.input_sizes ? call.input_sizes : kNoName);
    result.push_back(what.output_sizes ? call.output_sizes : kNoName);
    if (level == Level::sizes) continue;
    result.push_back(what.input_dtypes ? call.input_dtypes : kNoName);
    result.push_back(what.output_dtypes ? call.output_dtypes : kNoName);
  }
  return result;
}

// Calls f(calls) for each sequence of the rank's.
template <class F>
void each_sequence(const Caller& caller, const F& f) {
  for (std::size_t at = 0; at < caller.collectives.size();) {
    const auto begin = at;
    while (at < caller.collectives.size() &&
           caller.collectives[at].sequence == caller.collectives[begin].sequence)
      ++at;
    f(caller.collectives.subspan(begin, at - begin));
  }
}

// Sizes on one rank that the operation does not allow in a group of this size.
bool fits(const Names& names, const Entry& call, std::size_t ranks) {
  const auto operation = operation_of(names, call);
  if (operation == "all_reduce" || operation == "allreduce_coalesced")
    return call.input_sizes == call.output_sizes;
  const bool gathers = operation.starts_with("all_gather") || operation == "_all_gather_base";
  const bool scatters =
      operation.starts_with("reduce_scatter") || operation == "_reduce_scatter_base";
  if (!gathers && !scatters) return true;
  auto one = numel(names.text(call.input_sizes)), all = numel(names.text(call.output_sizes));
  if (scatters) std::swap(one, all);
  return all == one * ranks;
}

struct Position {
  std::uint64_t hash = 0;
  std::uint64_t given = 0, taken = 0;  // elements in and out over all ranks
  std::size_t ranks = 0;
  bool sums_up = false;  // an all_to_all: each element given is one taken
  bool differ = false;
  bool misfit = false;
};

std::map<std::int64_t, Position> places_of(const Names& names, const Group& group) {
  std::unordered_map<std::int64_t, Position> places;
  for (const auto& caller : group.callers)
    each_sequence(caller, [&](std::span<const Entry> calls) {
      auto& place = places[calls[0].sequence];
      const auto full = signature(names, calls, Level::dtype);
      const auto hash = hash_bytes(full.data(), full.size() * sizeof(NameId));
      if (place.ranks++ == 0) {
        place.hash = hash;
        place.sums_up = !compared(operation_of(names, calls[0])).input_sizes;
        place.misfit = group.known_by == Members::configured &&
                       std::any_of(calls.begin(), calls.end(), [&](const Entry& call) {
                         return !fits(names, call, group.members.size());
                       });
      }
      place.differ |= hash != place.hash;
      for (const auto& call : calls) {
        if (!place.sums_up) break;
        place.given += numel(names.text(call.input_sizes));
        place.taken += numel(names.text(call.output_sizes));
      }
    });
  return {places.begin(), places.end()};
}

struct Form {
  std::span<const Entry> calls;  // of the first rank that has it
  const Caller* first = nullptr;
  std::vector<int> ranks;
};

std::map<Signature, Form> forms_at(const Names& names, const Group& group, std::int64_t sequence,
                                   Level level) {
  std::map<Signature, Form> forms;
  for (const auto& caller : group.callers) {
    const auto calls = caller.at(sequence);
    if (calls.empty()) continue;
    auto& form = forms[signature(names, calls, level)];
    if (form.ranks.empty()) form = {calls, &caller, {}};
    form.ranks.push_back(caller.rank);
  }
  return forms;
}

struct Astray {
  const char* pitfall;
  const char* how;
};

// How the odd rank went astray, if its calls from here on are the others' in another order.
Astray astray(const Names& names, const Form& odd, const Form& usual, std::int64_t sequence) {
  const auto at = [&](const Form& form, std::int64_t where) {
    return signature(names, form.first->at(where), Level::dtype);
  };
  const auto odd_here = at(odd, sequence), odd_next = at(odd, sequence + 1);
  const auto here = at(usual, sequence), next = at(usual, sequence + 1);
  // One call was another, and they go on alike: any of their next ones may look like it.
  if (odd_next == next) return {"collective-mismatch", ""};
  if (odd_here == next && odd_next == here)
    return {"order-mismatch", " makes the two calls in the other order."};
  if (odd_here == next)
    return {"rank-conditional-collective",
            " makes the call that the others make next, as if it had left this one out."};
  if (odd_next == here)
    return {"rank-conditional-collective",
            " makes the others' call next, as if it had made one too many."};
  return {"collective-mismatch", ""};
}

diagnose::Finding describe(const Names& names, const Group& group, std::int64_t sequence) {
  static constexpr std::array<const char*, 3> kPitfalls = {"collective-mismatch", "shape-mismatch",
                                                           "dtype-mismatch"};
  auto level = Level::operation;
  auto by_signature = forms_at(names, group, sequence, level);
  while (by_signature.size() < 2 && level != Level::dtype) {
    level = level == Level::operation ? Level::sizes : Level::dtype;
    by_signature = forms_at(names, group, sequence, level);
  }
  std::vector<Form> forms;
  std::size_t total = 0;
  for (auto& [_, form] : by_signature) {
    total += form.ranks.size();
    forms.push_back(std::move(form));
  }
  std::stable_sort(forms.begin(), forms.end(), [](const Form& a, const Form& b) {
    return a.ranks.size() != b.ranks.size() ? a.ranks.size() > b.ranks.size()
                                            : a.ranks.front() < b.ranks.front();
  });

  diagnose::Finding finding;
  finding.pitfall = kPitfalls[static_cast<std::size_t>(level)];
  finding.sequence = sequence;
  // Of two ranks that differ, neither is the guilty one.
  const bool majority = 2 * forms[0].ranks.size() > total;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    if (i > 0 || !majority)
      finding.ranks.insert(finding.ranks.end(), forms[i].ranks.begin(), forms[i].ranks.end());
    if (i < kMostForms)
      finding.evidence += (i == 0 ? "" : "; ") + ranks_text(forms[i].ranks) + " called" + " " +
                          call_text(names, forms[i].calls) + call_site(names, forms[i].calls);
  }
  std::sort(finding.ranks.begin(), finding.ranks.end());
  if (forms.size() > kMostForms)
    finding.evidence += "; and " + std::to_string(forms.size() - kMostForms) + " more kinds";
  finding.evidence += ".";
  if (level != Level::operation) return finding;
  const auto [pitfall, how] = astray(names, forms[1], forms[0], sequence);
  finding.pitfall = pitfall;
  if (*how != 0) finding.evidence += " Rank " + std::to_string(forms[1].first->rank) + how;
  return finding;
}

// Alike on all ranks and yet impossible.
diagnose::Finding misfit(const Names& names, const Group& group, std::int64_t sequence,
                         const Position& place) {
  diagnose::Finding finding;
  finding.pitfall = "shape-mismatch";
  finding.sequence = sequence;
  std::span<const Entry> calls;
  for (const auto& caller : group.callers) {
    if (caller.at(sequence).empty()) continue;
    finding.ranks.push_back(caller.rank);
    if (calls.empty()) calls = caller.at(sequence);
  }
  finding.evidence =
      "all called " +
      (place.misfit ? call_text(names, calls) : std::string(operation_of(names, calls[0]))) +
      call_site(names, calls);
  finding.evidence +=
      place.misfit ? ", which does not fit a group of " + std::to_string(group.members.size()) + "."
                   : "; together the ranks give " + std::to_string(place.given) +
                         " elements and take " + std::to_string(place.taken) + ".";
  return finding;
}

}  // namespace

std::optional<diagnose::Finding> find_mismatch(const Names& names, const Group& group) {
  for (const auto& [sequence, place] : places_of(names, group)) {
    if (place.differ) return describe(names, group, sequence);
    const bool all = place.ranks == group.members.size();
    if (place.misfit || (place.sums_up && all && place.given != place.taken))
      return misfit(names, group, sequence, place);
  }
  return std::nullopt;
}

}  // namespace lockstep::flight
