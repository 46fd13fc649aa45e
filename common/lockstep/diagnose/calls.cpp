#include <lockstep/diagnose/calls.h>
#include <lockstep/diagnose/differences.h>
#include <lockstep/diagnose/format.h>

#include <algorithm>
#include <tuple>

namespace lockstep::diagnose {
namespace {

// Not a reduce_scatter: what is recorded of it are the parts, which may be unequal.
bool needs_equal_sizes(const trace::Collective& call) {
  const auto is = [&](const char* op) { return call.op.find(op) != std::string::npos; };
  return (is("reduce") && !is("reduce_scatter")) || is("broadcast");
}

// As equal signatures, without making them.
bool is_same(const trace::Collective& a, const trace::Collective& b) {
  return a.op == b.op && a.reduce_op == b.reduce_op && a.root == b.root && a.dtype == b.dtype &&
         (!needs_equal_sizes(a) || a.sizes == b.sizes);
}

// Tells `what` each call of a rank's last attempt.
template <class What>
void walk_calls(const trace::ParticipantTrace& rank, What what) {
  std::vector<const std::string*> passes;  // that have begun
  for (std::size_t i = rank.last_attempt; i < rank.events.size(); ++i) {
    const auto& event = rank.events[i];
    if (const auto* begin = event.as<trace::PassBegin>()) passes.push_back(&begin->phase);
    if (event.is<trace::PassEnd>() && !passes.empty()) passes.pop_back();
    const auto* call = event.as<trace::Collective>();
    if (call == nullptr || is_point_to_point(*call)) continue;
    what(Call{rank.participant.rank, event.step, event.time_ns, event.left_ns, call,
              passes.empty() ? nullptr : passes.back()});
  }
}

Calls find_calls(const Run& run) {
  Calls calls;
  for (const auto* rank : run.ranks) {
    auto next = calls.begin();  // a rank's calls mostly come in this order
    walk_calls(*rank, [&](const Call& call) {
      const auto& [group, sequence] = std::tie(call.collective->group, call.collective->sequence);
      const bool is_next =
          next != calls.end() && next->first.second == sequence && next->first.first == group;
      const auto place = is_next ? next : calls.try_emplace({group, sequence}).first;
      place->second.push_back(call);
      next = std::next(place);
    });
  }
  return calls;
}

// What calls_of() gathers, one after another, until `stop` says so of one.
template <class Stop>
bool any_call(const trace::ParticipantTrace& rank, Stop stop) {
  for (std::size_t i = rank.last_attempt; i < rank.events.size(); ++i)
    if (const auto* call = rank.events[i].as<trace::Collective>())
      if (!is_point_to_point(*call) && stop(*call)) return true;
  return false;
}

}  // namespace

bool has_calls(const Run& run) {
  return std::any_of(run.ranks.begin(), run.ranks.end(), [](const auto* rank) {
    return any_call(*rank, [](const auto&) { return true; });
  });
}

namespace {

bool find_all_alike(const Run& run) {
  std::vector<const trace::Collective*> longest;
  for (const auto* rank : run.ranks) {
    std::size_t made = 0;
    const bool differs = any_call(*rank, [&](const trace::Collective& call) {
      if (made == longest.size()) longest.push_back(&call);
      const auto& other = *longest[made++];
      return call.sequence != other.sequence || call.group != other.group || !is_same(call, other);
    });
    if (differs) return false;
  }
  std::map<std::string, std::int64_t> last;
  return std::all_of(longest.begin(), longest.end(), [&](const auto* call) {
    const auto [before, is_first] = last.emplace(call->group, call->sequence);
    const bool rises = is_first || before->second < call->sequence;
    before->second = call->sequence;
    return rises;
  });
}

}  // namespace

bool all_call_alike(const Run& run) {
  return run.once(find_all_alike);
}

bool made_in_the_same_passes(const Run& run) {
  std::vector<const std::string*> longest;  // phases, call by call
  return std::all_of(run.ranks.begin(), run.ranks.end(), [&](const auto* rank) {
    std::size_t made = 0;
    bool same = true;
    walk_calls(*rank, [&](const Call& call) {
      if (made == longest.size()) longest.push_back(call.phase);
      const auto* other = longest[made++];
      same = same && (other && call.phase ? *other == *call.phase : other == call.phase);
    });
    return same;
  });
}

std::set<std::string> ambiguous_groups(const Calls& calls) {
  std::set<std::string> groups;
  // A place's calls are in the order of the ranks.
  const auto one_rank = [](const Call& a, const Call& b) { return a.rank == b.rank; };
  for (const auto& [key, place] : calls)
    if (std::adjacent_find(place.begin(), place.end(), one_rank) != place.end())
      groups.insert(key.first);
  return groups;
}

const Calls& calls_of(const Run& run) {
  return run.once(find_calls);
}

namespace {

// Nothing where no group is ambiguous.
std::optional<Calls> find_unambiguous_calls(const Run& run) {
  const auto groups = ambiguous_groups(calls_of(run));
  if (groups.empty()) return std::nullopt;
  auto calls = calls_of(run);
  std::erase_if(calls, [&](const auto& place) { return groups.count(place.first.first) > 0; });
  return calls;
}

}  // namespace

const Calls& unambiguous_calls(const Run& run) {
  const auto& fewer = run.once(find_unambiguous_calls);
  return fewer ? *fewer : calls_of(run);
}

std::int64_t entered_ns(const std::vector<Call>& place) {
  return std::min_element(place.begin(), place.end(),
                          [](const auto& a, const auto& b) { return a.time_ns < b.time_ns; })
      ->time_ns;
}

std::vector<int> odd_ranks(const std::vector<Call>& place) {
  const auto is_as_the_first = [&](const Call& call) {
    return is_same(*call.collective, *place.front().collective);
  };
  if (std::all_of(place.begin(), place.end(), is_as_the_first)) return {};
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
  for (const auto size : call.sizes) text += fmt::format(" {}", size);
  if (call.root >= 0) text += fmt::format(" root {}", call.root);
  return text;
}

std::string numbered(const trace::Collective& call) {
  return fmt::format("{} number {}", call.op, call.sequence);
}

bool completed(const Call& call) {
  return call.left_ns != 0 && call.collective->failed == 0;
}

std::string describe_all(const std::vector<Call>& calls) {
  std::vector<int> ranks;
  std::vector<std::string> texts;
  for (const auto& call : calls) {
    ranks.push_back(call.rank);
    texts.push_back(describe(*call.collective));
  }
  std::string text;
  for (const auto& [what, alike] : ranks_by_text(ranks, texts))
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", lockstep::ranks_text(alike), what);
  return text;
}

std::optional<Mismatch> first_mismatch(const Calls& calls) {
  // Of several the first in time is told: the others may follow from it.
  std::optional<Mismatch> first;
  const auto ambiguous = ambiguous_groups(calls);
  for (const auto& [key, place] : calls) {
    if (ambiguous.count(key.first)) continue;
    if (first && entered_ns(*first->calls) <= entered_ns(place)) continue;
    auto odd = odd_ranks(place);
    if (odd.empty()) continue;
    first = Mismatch{&place, std::move(odd)};
  }
  return first;
}

const std::vector<Call>* first_out_of_step(const Calls& calls) {
  const std::vector<Call>* first = nullptr;
  for (const auto& at : calls) {
    const auto& place = at.second;
    const auto in_step = [&](const Call& call) { return call.step == place.front().step; };
    if (std::all_of(place.begin(), place.end(), in_step)) continue;
    if (!first || entered_ns(place) < entered_ns(*first)) first = &place;
  }
  return first;
}

namespace {

bool find_equally_often(const Run& run) {
  std::map<std::int64_t, std::size_t> of_first;  // calls by update
  auto last = INT64_MAX;     // that all ranks have come to, and may be inside of
  auto differs = INT64_MAX;  // the first in which some rank does
  for (const auto* rank : run.ranks) {
    std::map<std::int64_t, std::size_t> counts;
    for (const auto& at : rank->latest<trace::Collective>())
      counts[at.step] += is_point_to_point(*at.event) ? 0 : 1;
    if (counts.empty()) return false;
    last = std::min(last, counts.rbegin()->first);
    if (of_first.empty()) of_first = counts;
    const auto [one, other] = std::ranges::mismatch(of_first, counts);
    if (one != of_first.end()) differs = std::min(differs, one->first);
    if (other != counts.end()) differs = std::min(differs, other->first);
  }
  return differs >= last;
}

}  // namespace

bool all_call_equally_often(const Run& run) {
  return run.once(find_equally_often);
}

}  // namespace lockstep::diagnose
