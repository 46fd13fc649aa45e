// How the collectives differ that ranks called in the same place.
#include <lockstep/diagnose/hang_detectors.h>
#include <lockstep/diagnose/standstill.h>

#include <algorithm>

namespace lockstep::diagnose {
namespace {

enum class Kind { order, conditional, operation, dtype, reduce_op, root, shape };
constexpr std::size_t kWindow = 64;  // calls behind the mismatch that are looked at

struct Difference {
  Kind kind;
  std::vector<int> ranks;
  const std::vector<Call>* calls;
};

// What each rank of the place calls from there on, in its group.
using Sequels = std::map<int, std::vector<Signature>>;

Sequels sequels_of(const Calls& calls, const std::vector<Call>& place) {
  const auto& group = place.front().collective->group;
  const auto begin = place.front().collective->sequence;
  Sequels sequels;
  for (auto at = calls.find({group, begin}); at != calls.end() && at->first.first == group; ++at) {
    if (at->first.second >= begin + static_cast<std::int64_t>(kWindow)) break;
    for (const auto& call : at->second) sequels[call.rank].push_back(signature(*call.collective));
  }
  return sequels;
}

// The same calls from there on, in another order.
bool is_permuted(const Sequels& sequels) {
  std::size_t shortest = kWindow;
  for (const auto& [rank, sequel] : sequels) shortest = std::min(shortest, sequel.size());
  for (std::size_t length = 2; length <= shortest; ++length) {
    std::set<std::multiset<Signature>> different;
    for (const auto& [rank, sequel] : sequels)
      different.insert({sequel.begin(), sequel.begin() + static_cast<std::ptrdiff_t>(length)});
    if (different.size() == 1) return true;
  }
  return false;
}

// Ranks whose call here is one more: never made by those that differ, whose call is theirs before or
// next.
std::vector<int> with_one_more(const Run& run, const std::vector<Call>& place) {
  std::map<int, std::set<Signature>> made;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->latest<trace::Collective>())
      made[rank->participant.rank].insert(signature(*at.event));
  std::vector<int> ranks;
  for (const auto& call : place) {
    const auto mine = signature(*call.collective);
    const bool one_more = std::all_of(place.begin(), place.end(), [&](const Call& other) {
      const auto theirs = signature(*other.collective);
      if (theirs == mine) return true;
      return made[other.rank].count(mine) == 0 && made[call.rank].count(theirs) > 0;
    });
    if (one_more) ranks.push_back(call.rank);
  }
  return ranks;
}

bool each_is_the_others_too(const Run& run, const std::vector<Call>& place) {
  for (const auto& call : place)
    for (const auto* rank : run.ranks) {
      const auto made = rank->latest<trace::Collective>();
      const auto mine = signature(*call.collective);
      const bool here = std::any_of(place.begin(), place.end(), [&](const Call& other) {
        return other.rank == rank->participant.rank;
      });
      if (here && std::none_of(made.begin(), made.end(),
                               [&](const auto& at) { return signature(*at.event) == mine; }))
        return false;
    }
  return true;
}

template <class Field>
bool differ(const std::vector<Call>& place, const Field& field) {
  return std::any_of(place.begin(), place.end(), [&](const Call& call) {
    return field(*call.collective) != field(*place.front().collective);
  });
}

Kind field_that_differs(const std::vector<Call>& place) {
  if (differ(place, [](const auto& call) { return call.op; })) return Kind::operation;
  if (differ(place, [](const auto& call) { return call.dtype; })) return Kind::dtype;
  if (differ(place, [](const auto& call) { return call.reduce_op; })) return Kind::reduce_op;
  if (differ(place, [](const auto& call) { return call.root; })) return Kind::root;
  return Kind::shape;
}

// After it, the ranks call the same in the same places again: one call was another, and none more.
bool goes_on_alike(const Sequels& sequels) {
  const auto& first = sequels.begin()->second;
  return first.size() > 1 && std::all_of(sequels.begin(), sequels.end(), [&](const auto& of_rank) {
           return std::equal(first.begin() + 1, first.end(), of_rank.second.begin() + 1,
                             of_rank.second.end());
         });
}

// What those that have one more call next is what the others call here.
bool is_shifted(const Sequels& sequels, const std::vector<int>& one_more) {
  return std::all_of(one_more.begin(), one_more.end(), [&](int rank) {
    const auto& mine = sequels.at(rank);
    return mine.size() > 1 && std::all_of(sequels.begin(), sequels.end(), [&](const auto& other) {
             return other.second.front() == mine.front() || other.second.front() == mine[1];
           });
  });
}

std::optional<Difference> difference(const Run& run, const Calls& calls) {
  const auto mismatch = first_mismatch(calls);
  if (!mismatch) return std::nullopt;
  const auto& place = *mismatch->calls;
  const auto sequels = sequels_of(calls, place);
  const auto field = field_that_differs(place);
  if (goes_on_alike(sequels)) return Difference{field, mismatch->odd, &place};
  const bool other_operation = field == Kind::operation;
  if (is_permuted(sequels) || (other_operation && each_is_the_others_too(run, place)))
    return Difference{Kind::order, mismatch->odd, &place};
  const auto one_more = with_one_more(run, place);
  if (!one_more.empty() && (other_operation || is_shifted(sequels, one_more)))
    return Difference{Kind::conditional, one_more, &place};
  return Difference{field, mismatch->odd, &place};
}

// Nobody differs, and some ranks wait in a collective before which the others ended in order.
Verdict one_more_at_the_end(const trace::Trace& trace, const std::string& slug) {
  const auto place = standstill(trace);
  if (!place) return clean();
  const auto& last = place->culprits();
  if (last.empty() || last.front()->stand != Stand::exited) return clean();
  std::vector<int> waiting;
  for (const auto& rank : place->ranks)
    if (rank.stand == Stand::waiting) waiting.push_back(rank.rank);
  if (waiting.empty()) return clean();
  return found({.pitfall = slug,
                .ranks = waiting,
                .step = place->step,
                .sequence = place->sequence,
                .evidence = ranks_text(waiting, "calls ", "call ") + place->operation + " number " +
                            std::to_string(place->sequence) +
                            ", before which the others ended in order"});
}

Verdict named(const trace::Trace& trace, Kind kind, const std::string& slug,
              const std::string& what) {
  const Run run(trace);
  if (run.world_size < 2) return not_applicable("one rank has nobody to agree with");
  const auto calls = calls_of(run);
  if (calls.empty()) return not_triggered("no collective was recorded");
  const auto different = difference(run, calls);
  if (!different && !ambiguous_groups(calls).empty())
    return not_triggered("a rank has a group's sequence twice: which calls meet cannot be told");
  if (!different || different->kind != kind) return clean();
  const auto& first = different->calls->front();
  return found({.pitfall = slug,
                .ranks = different->ranks,
                .step = first.step,
                .sequence = first.collective->sequence,
                .evidence = what + " at number " + std::to_string(first.collective->sequence) +
                            ": " + describe_all(*different->calls)});
}

}  // namespace

Verdict order_mismatch(const trace::Trace& trace) {
  return named(trace, Kind::order, "order-mismatch",
               "the ranks call the same collectives in another order, first");
}

Verdict rank_conditional_collective(const trace::Trace& trace) {
  const std::string slug = "rank-conditional-collective";
  const auto verdict =
      named(trace, Kind::conditional, slug, "some ranks call a collective that the others do not,");
  return verdict.state == State::clean ? one_more_at_the_end(trace, slug) : verdict;
}

Verdict dtype_mismatch(const trace::Trace& trace) {
  return named(trace, Kind::dtype, "dtype-mismatch", "the ranks' dtypes differ");
}

Verdict reduce_op_mismatch(const trace::Trace& trace) {
  return named(trace, Kind::reduce_op, "reduce-op-mismatch", "the ranks' reduce operations differ");
}

Verdict root_mismatch(const trace::Trace& trace) {
  return named(trace, Kind::root, "root-mismatch", "the ranks name different roots");
}

Verdict shape_mismatch(const trace::Trace& trace) {
  return named(trace, Kind::shape, "shape-mismatch", "the ranks' sizes differ");
}

}  // namespace lockstep::diagnose
