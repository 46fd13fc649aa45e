// Pitfalls after which ranks wait for one that does not come.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/stall.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace lockstep::diagnose {
namespace {
Verdict left_behind(const Run& run, RankState state);
Verdict late(const Run& run, bool long_work);
Verdict evaluation_through_wrapper_on_one_rank(const Run& run);
Verdict async_work_not_waited(const Run& run);
Verdict every_rank_raises(const Run& run);
Verdict no_progress(const Run& run);
}  // namespace

std::vector<Detector> hanging_detectors() {
  return {
      // Rule: what explains where the job stalls (stall.h) is a rank that was ended by a
      // signal.
      {.slug = "peer-dies",
       .equation = Equation::same_calls,
       .line = "",
       .needs = {"collective", "rank_end"},
       .participants = Participants::ranks,
       .complete = false,
       .stage = Stage::lost_rank,
       .detect = [](const Run& run) { return left_behind(run, RankState::dead); }},
      // Rule: the same, by ranks that left by exceptions of their own.
      {.slug = "one-rank-raises",
       .equation = Equation::same_calls,
       .line = "raised",
       .needs = {"collective", "rank_end"},
       .participants = Participants::ranks,
       .complete = false,
       .stage = Stage::lost_rank,
       .detect = [](const Run& run) { return left_behind(run, RankState::raised); }},
      // Rule: a rank entered a collective when a peer had given it up, and it is not
      // rank-zero-long-work.
      {.slug = "slow-rank",
       .equation = Equation::same_calls,
       .line = "",
       .needs = {"collective"},
       .participants = Participants::ranks,
       .complete = false,
       .stage = Stage::lost_rank,
       .detect = [](const Run& run) { return late(run, false); }},
      // Rule: the same, on rank 0 alone, which since its collective before alone evaluated or wrote
      // a checkpoint. (A pass or a checkpoint tells it: level 2.)
      {.slug = "rank-zero-long-work",
       .equation = Equation::same_calls,
       .line = "",
       .needs = {"collective"},
       .level = 2,
       .participants = Participants::ranks,
       .complete = false,
       .stage = Stage::lost_rank,
       .detect = [](const Run& run) { return late(run, true); }},
      // Rule: in one place some ranks' call belongs to an evaluation, and the others' to training;
      // or they have none there, and the job stalls.
      {.slug = "evaluation-through-wrapper-on-one-rank",
       .equation = Equation::same_calls,
       .line = "",
       .needs = {"pass_begin", "collective"},
       .participants = Participants::ranks,
       .complete = false,
       .stage = Stage::membership,
       .detect = evaluation_through_wrapper_on_one_rank},
      // Rule: what was used is not what was there after the wait.
      {.slug = "async-work-not-waited",
       .equation = Equation::mean_gradient,
       .line = "",
       .needs = {"async_result"},
       .participants = Participants::ranks,
       .complete = false,
       .accounts_for = {"replicas-diverged", "gradient-not-the-mean"},
       .detect = async_work_not_waited},
      // Rule: every rank ended with an exception, and none of these told of a collective that failed. Their texts are not
      // read.
      {.slug = "every-rank-raises",
       .equation = Equation::same_calls,
       .line = "raised",
       .needs = {"rank_end"},
       .stage = Stage::stall,
       .detect = every_rank_raises},
      // Rule: stall.h; or, without one, ranks were left in operations with one peer.
      {.slug = "no-progress",
       .equation = Equation::same_calls,
       .needs = {"collective"},
       .participants = Participants::ranks,
       .complete = false,
       .stage = Stage::stall,
       .detect = no_progress},
  };
}

namespace {
std::vector<int> numbers_of(const std::vector<const RankAtStall*>& ranks) {
  std::vector<int> numbers;
  for (const auto* rank : ranks) numbers.push_back(rank->rank);
  return numbers;
}

// A finding at the place where the job stalls.
Verdict found_at(const Stall& place, std::vector<int> ranks, const std::string& before = "") {
  return found({.ranks = std::move(ranks),
                .step = place.step,
                .sequence = place.sequence,
                .evidence = before + one_line(place)});
}

// The ranks in this state where others wait.
Verdict left_behind(const Run& run, RankState state) {
  const auto& place = stall_of(run);
  if (!place) return clean();
  const auto culprits = place->culprits();
  if (culprits.empty() || culprits.front()->state != state) return clean();
  return found_at(*place, numbers_of(culprits));
}

// Of the events between the rank's collective before this place and its entering it, whether one is
// of work that a rank may do alone: an evaluation, a checkpoint.
bool worked_alone(const trace::ParticipantTrace& rank, const RankAtStall& at) {
  bool worked = false;
  for (const auto& event : rank.events) {
    if (const auto* call = event.as<trace::Collective>()) {
      if (call == at.call) return worked;
      worked = false;
    }
    const auto* pass = event.as<trace::PassBegin>();
    const auto* file = event.as<trace::CheckpointFile>();
    worked =
        worked || (pass && pass->phase == "evaluation") || (file && file->action == "save_begin");
  }
  return false;
}

Verdict late(const Run& run, bool long_work) {
  if (!has_calls(run)) return not_triggered("no collective was recorded");
  const auto& place = stall_of(run);
  if (!place) return clean();
  const auto culprits = place->culprits();
  if (culprits.empty() || culprits.front()->state != RankState::late) return clean();
  const auto ranks = numbers_of(culprits);
  const bool of_rank_zero = ranks == std::vector<int>{0} && run.numbers.front() == 0 &&
                            worked_alone(*run.ranks.front(), *culprits.front());
  if (of_rank_zero != long_work) return clean();
  return found_at(*place, ranks,
                  long_work ? "rank 0 evaluated or saved while the others waited: " : "");
}

bool is_made_in(const Call& call, const char* phase) {
  return call.phase != nullptr && *call.phase == phase;
}

// How many evaluations a rank had begun by then.
std::ptrdiff_t evaluations_by(const trace::ParticipantTrace& rank, std::int64_t time_ns) {
  const auto passes = rank.latest<trace::PassBegin>();
  return std::count_if(passes.begin(), passes.end(), [&](const auto& at) {
    return at.event->phase == "evaluation" && at.time_ns <= time_ns;
  });
}

// Another rank has begun the evaluation that a rank makes this call in, and made no call in it: nobody evaluates alone.
bool all_evaluate(const Run& run, const std::vector<Call>& place, const std::vector<int>& callers) {
  std::ptrdiff_t evaluation = 0;
  std::map<int, std::int64_t> entered;
  for (const auto& call : place) {
    entered[call.rank] = call.time_ns;
    if (std::find(callers.begin(), callers.end(), call.rank) != callers.end())
      evaluation = std::max(evaluation, evaluations_by(run.rank(call.rank), call.time_ns));
  }
  return std::any_of(run.ranks.begin(), run.ranks.end(), [&](const auto* rank) {
    const int number = rank->participant.rank;
    if (std::find(callers.begin(), callers.end(), number) != callers.end()) return false;
    const auto at = entered.find(number);
    constexpr auto kEver = std::numeric_limits<std::int64_t>::max();
    return evaluations_by(*rank, at == entered.end() ? kEver : at->second) >= evaluation;
  });
}

// Ranks have not come because something ended them.
bool are_missing_for_a_reason(const Stall& still) {
  return std::any_of(still.ranks.begin(), still.ranks.end(), [](const RankAtStall& rank) {
    return rank.call == nullptr &&
           (rank.state == RankState::dead || rank.state == RankState::raised ||
            rank.state == RankState::stopped);
  });
}

Verdict evaluation_through_wrapper_on_one_rank(const Run& run) {
  if (!has_calls(run)) return not_triggered("no collective was recorded");
  const auto& still = stall_of(run);
  if (!still && all_call_alike(run) && made_in_the_same_passes(run)) return clean();
  const auto& calls = unambiguous_calls(run);
  const Call* first = nullptr;
  std::vector<int> ranks;
  for (const auto& [key, place] : calls) {
    std::vector<int> evaluating, training;
    for (const auto& call : place) {
      if (is_made_in(call, "evaluation")) evaluating.push_back(call.rank);
      if (is_made_in(call, "train")) training.push_back(call.rank);
    }
    // Where none of the others has come, it is a fault if they are waited for.
    const bool waits = still && still->group == key.first && still->sequence == key.second &&
                       place.size() < still->ranks.size() && !are_missing_for_a_reason(*still);
    if (evaluating.empty() || (training.empty() && !waits)) continue;
    if (first && first->time_ns <= place.front().time_ns) continue;
    if (all_evaluate(run, place, evaluating)) continue;
    first = &place.front();
    ranks = evaluating;
  }
  if (!first) return clean();
  // Ranks whose calls have been out of step since they trained are ahead of the others, not alone.
  const auto mismatch = first_mismatch(calls);
  if (mismatch && entered_ns(*mismatch->calls) < first->time_ns &&
      std::none_of(mismatch->calls->begin(), mismatch->calls->end(),
                   [](const Call& call) { return is_made_in(call, "evaluation"); }))
    return clean();
  const auto* out_of_step = first_out_of_step(calls);
  if (out_of_step && entered_ns(*out_of_step) < first->time_ns) return clean();
  return found(
      {.ranks = ranks,
       .step = first->step,
       .sequence = first->collective->sequence,
       .evidence = fmt::format(
           "{} through what communicates, alone: {} belongs to no evaluation of the others{}",
           ranks_text(ranks, "evaluates", "evaluate"), numbered(*first->collective),
           still ? ". " + one_line(*still) : "")});
}

Verdict async_work_not_waited(const Run& run) {
  bool looked = false;
  std::vector<int> ranks;
  std::int64_t step = -1;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    std::map<std::string, std::uint64_t> used;
    for (const auto& at : run.ranks[r]->latest<trace::AsyncResult>()) {
      if (at.event->moment == "used") used[at.event->name] = at.event->content;
      if (at.event->moment != "waited" || !used.count(at.event->name)) continue;
      looked = true;
      if (used[at.event->name] == at.event->content) continue;
      if (ranks.empty()) step = at.step;
      if (ranks.empty() || ranks.back() != run.numbers[r]) ranks.push_back(run.numbers[r]);
    }
  }
  if (!looked) return not_triggered("no result was both used and waited for, as far as recorded");
  if (ranks.empty()) return clean();
  return found({.ranks = ranks,
                .step = step,
                .evidence = ranks_text(ranks, "used", "used") +
                            " a result that was another one after the wait"});
}

// Ranks that were left inside of an operation with one peer: how long, and which.
Verdict left_in_point_to_point(const Run& run) {
  std::vector<int> ranks;
  std::string evidence;
  for (const auto& end : run.trace.ends) {
    const auto rank =
        std::find_if(run.trace.ranks.begin(), run.trace.ranks.end(),
                     [&](const auto& one) { return one.participant.rank == end.rank; });
    if (rank == run.trace.ranks.end() || end.how == "completed") continue;
    for (const auto& at : rank->latest<trace::Collective>()) {
      const bool waits = at.left_ns == 0 && end.ended_ns - at.time_ns >= kStallTimeNs;
      if (!waits || !is_point_to_point(*at.event)) continue;
      ranks.push_back(static_cast<int>(end.rank));
      evidence += fmt::format(
          "{}rank {} waits in {}{}", evidence.empty() ? "" : "; ", end.rank, numbered(*at.event),
          at.event->root >= 0 ? " with rank " + std::to_string(at.event->root) : "");
      break;
    }
  }
  if (ranks.empty()) return clean();
  return found({.ranks = ranks, .evidence = evidence});
}

// Each of them: where one raises alone, the others find out by a collective.
Verdict every_rank_raises(const Run& run) {
  const auto& ends = run.trace.ends;
  if (ends.empty()) return not_triggered("nobody told how the ranks ended");
  const bool all = ends.size() == static_cast<std::size_t>(run.world_size) &&
                   std::all_of(ends.begin(), ends.end(), [](const auto& end) {
                     return end.how == "raised" && !end.collective;
                   });
  if (!all) return clean();
  std::int64_t step = -1;
  for (const auto* rank : run.ranks)
    if (!rank->events.empty()) step = std::max<std::int64_t>(step, rank->events.back().step);
  return found(
      {.ranks = run.numbers,
       .step = step,
       .evidence = "every rank raised an exception, and none of them came from a collective"});
}

Verdict no_progress(const Run& run) {
  const bool recorded = std::any_of(run.ranks.begin(), run.ranks.end(), [](const auto* rank) {
    return !rank->template latest<trace::Collective>().empty();
  });
  if (!recorded) return not_triggered("no collective was recorded");
  const auto& place = stall_of(run);
  if (!place) return left_in_point_to_point(run);
  const auto culprits = numbers_of(place->culprits());
  return found_at(*place, culprits.empty() ? run.numbers : culprits);
}

}  // namespace
}  // namespace lockstep::diagnose
