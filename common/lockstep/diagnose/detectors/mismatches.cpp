// How the collectives differ that ranks called in the same place.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/stall.h>
#include <lockstep/diagnose/unequal_gather.h>
#include <lockstep/diagnose/update_calls.h>

#include <algorithm>

namespace lockstep::diagnose {
namespace {
enum class Kind { order, conditional, operation, dtype, reduce_op, root, shape };
Verdict named(const Run& run, Kind kind, const std::string& what);
Verdict rank_conditional_collective(const Run& run);
Verdict shape_mismatch(const Run& run);
}  // namespace

// All name the first place at which ranks called different collectives, by how their calls differ.
std::vector<Detector> mismatches_detectors() {
  return {
      // Rule: from there on they call the same ones in another order; or the operations differ, and
      // each side calls the other's elsewhere, and neither has left a loop; or two calls of one
      // update are swapped on some ranks.
      {.slug = "order-mismatch",
       .equation = Equation::same_calls,
       .whole = true,
       .needs = {"collective"},
       .complete = false,
       .stage = Stage::collectives,
       .detect =
           [](const Run& run) {
             return named(run, Kind::order,
                          "the ranks call the same collectives in another order, first");
           }},
      // Rule: some call one more: the others never call it, and their own call comes next, or came
      // before. Or the operations differ, each side calls the other's elsewhere, and some have left
      // the loop that the others are in: these call what every one of the last three updates
      // called, those what none of them did. Or the sizes differ, and the dtypes or the updates
      // that ranks are in do, too: they are at different calls. Also where some wait in a
      // collective before which the others ended in order. One more call of the same operation with
      // other sizes is a shape-mismatch, unless what follows was recorded, or the update before had
      // an engine's reductions alone.
      {.slug = "rank-conditional-collective",
       .equation = Equation::same_calls,
       .needs = {"collective"},
       .complete = false,
       .stage = Stage::collectives,
       .detect = rank_conditional_collective},
      // Rule: operation and sizes are the same, and the dtypes differ.
      {.slug = "dtype-mismatch",
       .equation = Equation::same_calls,
       .needs = {"collective"},
       .complete = false,
       .stage = Stage::collectives,
       .accounts_for = {"replicas-diverged", "gradient-not-the-mean"},
       .detect =
           [](const Run& run) { return named(run, Kind::dtype, "the ranks' dtypes differ"); }},
      // Rule: operation and dtype are the same, and the reduce operations differ.
      {.slug = "reduce-op-mismatch",
       .equation = Equation::same_calls,
       .needs = {"collective"},
       .complete = false,
       .stage = Stage::collectives,
       .accounts_for = {"replicas-diverged", "gradient-not-the-mean"},
       .detect =
           [](const Run& run) {
             return named(run, Kind::reduce_op, "the ranks' reduce operations differ");
           }},
      // Rule: operation, dtype and reduce operation are the same, and the roots differ.
      {.slug = "root-mismatch",
       .equation = Equation::same_calls,
       .needs = {"collective"},
       .complete = false,
       .stage = Stage::collectives,
       .detect =
           [](const Run& run) { return named(run, Kind::root, "the ranks name different roots"); }},
      // Rule: only the sizes differ; or a rank did not come out of a gather of unequal sizes, and
      // none had gone well before.
      {.slug = "shape-mismatch",
       .equation = Equation::same_calls,
       .needs = {"collective"},
       .complete = false,
       .stage = Stage::collectives,
       .detect = shape_mismatch},
  };
}

namespace {
constexpr std::size_t kWindow = 64;  // calls behind the mismatch that are looked at

struct ClassifiedMismatch {
  Kind kind;
  std::vector<int> ranks;
  const std::vector<Call>* calls;
};

// What the ranks of the place call from there on, in its group: who calls which. Most call the same.
using Sequel = std::vector<Signature>;
using Sequels = std::map<Sequel, std::set<int>>;

Sequels sequels_of(const Calls& calls, const std::vector<Call>& place) {
  const auto& group = place.front().collective->group;
  const auto begin = place.front().collective->sequence;
  std::map<int, Sequel> of_ranks;
  for (auto at = calls.find({group, begin}); at != calls.end() && at->first.first == group; ++at) {
    if (at->first.second >= begin + static_cast<std::int64_t>(kWindow)) break;
    for (const auto& call : at->second) of_ranks[call.rank].push_back(signature(*call.collective));
  }
  Sequels sequels;
  for (auto& [rank, sequel] : of_ranks) sequels[std::move(sequel)].insert(rank);
  return sequels;
}

// The same calls from there on, in another order.
bool is_permuted(const Sequels& sequels) {
  std::size_t shortest = kWindow;
  for (const auto& [sequel, ranks] : sequels) shortest = std::min(shortest, sequel.size());
  for (std::size_t length = 2; length <= shortest; ++length) {
    std::set<std::multiset<Signature>> different;
    for (const auto& [sequel, ranks] : sequels)
      different.insert({sequel.begin(), sequel.begin() + static_cast<std::ptrdiff_t>(length)});
    if (different.size() == 1) return true;
  }
  return false;
}

// The different calls of the place: who makes which.
std::map<Signature, std::set<int>> callers(const std::vector<Call>& place) {
  std::map<Signature, std::set<int>> ranks;
  for (const auto& call : place) ranks[signature(*call.collective)].insert(call.rank);
  return ranks;
}

// Of these calls, those that each rank made, wherever.
std::map<int, std::set<Signature>> made_of(const Run& run,
                                           const std::map<Signature, std::set<int>>& here) {
  std::map<int, std::set<Signature>> made;
  for (const auto* rank : run.ranks) {
    auto& of_rank = made[rank->participant.rank];
    for (const auto& at : rank->latest<trace::Collective>()) {
      if (of_rank.size() == here.size()) break;
      if (auto mine = signature(*at.event); here.count(mine) > 0) of_rank.insert(std::move(mine));
    }
  }
  return made;
}

// Ranks whose call here is one more: never made by those that differ, whose call is theirs before or
// next.
std::vector<int> with_one_more(const Run& run, const std::vector<Call>& place) {
  const auto here = callers(place);
  const auto made = made_of(run, here);
  std::set<int> ranks;
  for (const auto& mine : here) {
    const auto make_it = [&](int rank) { return made.at(rank).count(mine.first) > 0; };
    const bool others_make_it = std::any_of(here.begin(), here.end(), [&](const auto& theirs) {
      return theirs.first != mine.first &&
             std::any_of(theirs.second.begin(), theirs.second.end(), make_it);
    });
    if (others_make_it) continue;
    for (const int rank : mine.second)
      if (made.at(rank).size() == here.size()) ranks.insert(rank);
  }
  return {ranks.begin(), ranks.end()};
}

bool each_is_the_others_too(const Run& run, const std::vector<Call>& place) {
  const auto here = callers(place);
  const auto made = made_of(run, here);
  return std::all_of(place.begin(), place.end(),
                     [&](const Call& call) { return made.at(call.rank).size() == here.size(); });
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

// Some ranks make two calls of one update in one order, others in the other. Of a rank that waits in its first call the
// second is not known.
bool are_swapped(const Calls& calls, const std::vector<Call>& place) {
  const auto here = callers(place);
  const auto& first = *place.front().collective;
  const auto next = calls.find({first.group, first.sequence + 1});
  if (here.size() != 2 || next == calls.end()) return false;
  std::map<int, const Call*> of_rank;
  for (const auto& call : place) of_rank[call.rank] = &call;
  std::set<Signature> swapped;
  for (const auto& call : next->second) {
    const auto before = of_rank.find(call.rank);
    if (before == of_rank.end() || before->second->step != call.step) continue;
    auto mine = signature(*before->second->collective), then = signature(*call.collective);
    if (mine != then && here.count(then) > 0) swapped.insert(std::move(mine));
  }
  return swapped.size() == 2;
}

// After it, the ranks call the same in the same places again: one call was another, and none more.
bool goes_on_alike(const Sequels& sequels) {
  const auto& first = sequels.begin()->first;
  return first.size() > 1 && std::all_of(sequels.begin(), sequels.end(), [&](const auto& other) {
           return std::equal(first.begin() + 1, first.end(), other.first.begin() + 1,
                             other.first.end());
         });
}

// What those that have one more call next is what the others call here.
bool is_shifted(const Sequels& sequels, const std::vector<int>& one_more) {
  for (const auto& of : sequels) {
    const auto& mine = of.first;
    const auto is_mine = [&](int rank) { return of.second.count(rank) > 0; };
    if (std::none_of(one_more.begin(), one_more.end(), is_mine)) continue;
    const auto is_here_or_next = [&](const auto& other) {
      return other.first.front() == mine.front() || other.first.front() == mine[1];
    };
    if (mine.size() < 2 || !std::all_of(sequels.begin(), sequels.end(), is_here_or_next))
      return false;
  }
  return true;
}

// Some ranks call from a pass of one phase, others from one of another: these have left out a call of that one.
bool are_of_other_phases(const std::vector<Call>& place) {
  const auto phase_of = [](const Call& call) { return call.phase ? *call.phase : std::string(); };
  return std::any_of(place.begin(), place.end(), [&](const Call& call) {
    return !phase_of(call).empty() && !phase_of(place.front()).empty() &&
           phase_of(call) != phase_of(place.front());
  });
}

// Some ranks have left the loop that the others are in: no rank made their call in the last three updates, and all made
// the others' in each of these.
bool some_left_the_loop(const Calls& calls, const std::vector<Call>& place) {
  constexpr std::size_t kUpdates = 3;
  auto step = place.front().step;
  for (const auto& call : place) step = std::min(step, call.step);
  const auto& first = *place.front().collective;
  std::map<Signature, std::set<std::int64_t>>
      updates;  // of the last ones, those that made the call
  for (auto at = calls.find({first.group, first.sequence}); at != calls.begin();) {
    --at;
    const auto& before = at->second.front();
    if (before.collective->group != first.group ||
        before.step < step - static_cast<std::int64_t>(kUpdates))
      break;
    if (before.step < step) updates[signature(*before.collective)].insert(before.step);
  }
  std::size_t left = 0;
  for (const auto& call : place) {
    const auto found = updates.find(signature(*call.collective));
    if (found == updates.end())
      ++left;
    else if (found->second.size() < kUpdates)
      return false;
  }
  return left > 0 && left < place.size();
}

std::optional<ClassifiedMismatch> classify_mismatch(const Run& run) {
  const auto& calls = calls_of(run);
  const auto mismatch = first_mismatch(calls);
  if (!mismatch) return std::nullopt;
  const auto& place = *mismatch->calls;
  if (are_of_other_phases(place))
    return ClassifiedMismatch{Kind::conditional, mismatch->odd, &place};
  const auto sequels = sequels_of(calls, place);
  const auto field = field_that_differs(place);
  if (goes_on_alike(sequels)) return ClassifiedMismatch{field, mismatch->odd, &place};
  const bool other_operation = field == Kind::operation;
  if (is_permuted(sequels) || are_swapped(calls, place))
    return ClassifiedMismatch{Kind::order, mismatch->odd, &place};
  if (other_operation && each_is_the_others_too(run, place)) {
    const auto kind = some_left_the_loop(calls, place) ? Kind::conditional : Kind::order;
    return ClassifiedMismatch{kind, mismatch->odd, &place};
  }
  // Calls of other sizes are of other things, where the dtypes or the updates differ, too.
  const auto other_update = [&](const Call& call) { return call.step != place.front().step; };
  if ((field == Kind::dtype || std::any_of(place.begin(), place.end(), other_update)) &&
      differ(place, [](const auto& call) { return call.sizes; }))
    return ClassifiedMismatch{Kind::conditional, mismatch->odd, &place};
  const auto one_more = with_one_more(run, place);
  if (!one_more.empty() && (other_operation || is_shifted(sequels, one_more)))
    return ClassifiedMismatch{Kind::conditional, one_more, &place};
  if (field == Kind::shape) {
    if (const auto moved = moved_within_the_update(run, place))
      return ClassifiedMismatch{moved->left_out ? Kind::conditional : Kind::order, moved->ranks,
                                &place};
    if (const auto own = own_before_the_engines(run, place); !own.empty())
      return ClassifiedMismatch{Kind::conditional, own, &place};
  }
  return ClassifiedMismatch{field, mismatch->odd, &place};
}

Verdict left_out(const Run& run) {
  if (all_call_equally_often(run)) return clean();
  const auto different = left_out_in_an_update(run);
  if (!different) return clean();
  const auto& first =
      *std::min_element(different->place->begin(), different->place->end(),
                        [](const Call& a, const Call& b) { return a.step < b.step; });
  return found({.ranks = different->ranks,
                .step = first.step,
                .sequence = first.collective->sequence,
                .evidence = fmt::format(
                    "some ranks call {} in update {}, and others later: they left a collective out",
                    numbered(*first.collective), first.step)});
}

// Nobody differs, and some ranks wait in a collective before which the others ended in order.
Verdict one_more_at_the_end(const Run& run) {
  const auto& place = stall_of(run);
  if (!place) return clean();
  const auto& last = place->culprits();
  if (last.empty() || last.front()->state != RankState::exited) return clean();
  std::vector<int> waiting;
  for (const auto& rank : place->ranks)
    if (rank.state == RankState::waiting) waiting.push_back(rank.rank);
  if (waiting.empty()) return clean();
  // Without its launcher's word a rank that closed its trace may have raised, unless it let go of its groups; most of
  // them will not have.
  const auto untold = [&](const auto* rank) {
    const auto groups = run.rank(rank->rank).template latest<trace::Group>();
    return !rank->end && std::none_of(groups.begin(), groups.end(),
                                      [](const auto& at) { return at.event->action == "leave"; });
  };
  const bool by_most = last.size() > waiting.size();
  if (!by_most && std::any_of(last.begin(), last.end(), untold)) return clean();
  const auto has_word = [](const auto* rank) { return rank->end != nullptr; };
  const bool known = by_most || std::all_of(last.begin(), last.end(), has_word);
  return found({.ranks = known ? waiting : run.numbers,  // else either may be wrong
                .step = place->step,
                .sequence = place->sequence,
                .evidence = fmt::format("{} {} number {}, before which the others ended in order",
                                        ranks_text(waiting, "calls", "call"), place->operation,
                                        place->sequence)});
}

Verdict named(const Run& run, Kind kind, const std::string& what) {
  if (!has_calls(run)) return not_triggered("no collective was recorded");
  if (all_call_alike(run)) return clean();
  const auto& different = run.once(classify_mismatch);
  if (!different && !ambiguous_groups(calls_of(run)).empty())
    return not_triggered("a rank has a group's sequence twice: which calls meet cannot be told");
  if (!different || different->kind != kind) return clean();
  const auto& first = different->calls->front();
  return found({.ranks = different->ranks,
                .step = first.step,
                .sequence = first.collective->sequence,
                .evidence = fmt::format("{} at number {}: {}", what, first.collective->sequence,
                                        describe_all(*different->calls))});
}

Verdict rank_conditional_collective(const Run& run) {
  const auto verdict = named(run, Kind::conditional,
                             "some ranks call a collective that the others do not call there,");
  if (verdict.state != State::clean) return verdict;
  const auto in_an_update = left_out(run);
  return in_an_update.state == State::found ? in_an_update : one_more_at_the_end(run);
}

Verdict shape_mismatch(const Run& run) {
  const auto verdict = named(run, Kind::shape, "the ranks' sizes differ");
  return verdict.state == State::clean ? unequal_gather(run) : verdict;
}

}  // namespace
}  // namespace lockstep::diagnose
