// Pitfalls of making process groups: it takes all ranks of the job.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace lockstep::diagnose {
namespace {
Verdict judge(const Run& run, bool first);
}  // namespace

std::vector<Detector> joining_detectors() {
  return {
      // Rule: ranks wait to join the first group that was made, and a rank of the job never began
      // to.
      {.slug = "rank-skips-init",
       .equation = Equation::one_job,
       .needs = {"group"},
       .participants = Participants::ranks,
       .complete = false,
       .stage = Stage::membership,
       .detect = [](const Run& run) { return judge(run, true); }},
      // Rule: ranks wait to join a later group, and ranks that are no members of it took no part in
      // making it; or they made another one under its name, which is the one that came next.
      {.slug = "subgroup-created-by-members-only",
       .equation = Equation::same_calls,
       .line = "",
       .needs = {"group"},
       .participants = Participants::ranks,
       .stage = Stage::membership,
       .detect = [](const Run& run) { return judge(run, false); }},
  };
}

namespace {
constexpr auto kNever = std::numeric_limits<std::int64_t>::max();

// A group that somebody began to join, in the order in which that happened.
struct Making {
  std::string name;
  std::int64_t time_ns = 0;
  std::vector<std::int64_t> members;          // by the first rank that came
  std::set<std::vector<std::int64_t>> meant;  // the members, by each rank that came
  std::set<int> came, joined;  // ranks; joined: they wait no longer, as far as is known
  // Those that came and never got further; and those that never came.
  std::vector<int> inside() const {
    std::vector<int> ranks;
    std::set_difference(came.begin(), came.end(), joined.begin(), joined.end(),
                        std::back_inserter(ranks));
    return ranks;
  }
  std::vector<int> missing(const std::vector<int>& of) const {
    std::vector<int> ranks;
    std::set_difference(of.begin(), of.end(), came.begin(), came.end(), std::back_inserter(ranks));
    return ranks;
  }
  // Those that made another group in its place, and are no members of it: they did not see that it was made.
  std::vector<int> left_it_out() const {
    if (meant.size() < 2) return {};
    std::map<std::int64_t, std::size_t> groups_of;  // rank: how many of them it belongs to
    for (const auto& group : meant)
      for (const auto member : group) ++groups_of[member];
    std::vector<int> left_out;
    for (const int rank : came)
      if (groups_of[rank] < meant.size()) left_out.push_back(rank);
    return left_out;
  }
};

// It was there until all were told to end: it may have come yet.
bool was_there(const Run& run, int rank) {
  const auto* end = run.end_of(rank);
  return end != nullptr && end->how == "stopped";
}

// Whether it is known that the rank waited for the others, from the moment at which it began to join: not while it runs;
// and ranks of one job start some time apart.
bool waited(const Run& run, const trace::ParticipantTrace& rank, std::int64_t since_ns) {
  constexpr std::int64_t kError = 1'000'000'000, kOrder = 60'000'000'000;
  const auto* end = run.end_of(rank.participant.rank);
  if (end == nullptr) return !rank.runs;
  if (end->how == "completed") return true;
  return end->ended_ns - since_ns >= (end->how == "stopped" ? kOrder : kError);
}

std::vector<Making> makings_of(const Run& run) {
  std::vector<Making> all;
  std::map<std::pair<std::string, int>, std::size_t> places;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    int life = 0;  // a rank that lets go of its groups begins to number them anew
    for (const auto& at : run.ranks[r]->latest<trace::Group>()) {
      if (at.event->action == "leave") ++life;
      const auto [place, is_new] = places.emplace(std::pair(at.event->name, life), all.size());
      if (is_new) all.push_back({.name = at.event->name, .time_ns = kNever});
      auto& making = all[place->second];
      if (at.event->action == "joined") making.joined.insert(run.numbers[r]);
      if (at.event->action != "join") continue;
      making.came.insert(run.numbers[r]);
      if (!waited(run, *run.ranks[r], at.time_ns)) making.joined.insert(run.numbers[r]);
      making.meant.insert(at.event->members);
      making.time_ns = std::min(making.time_ns, at.time_ns);
      if (making.members.empty()) making.members = at.event->members;
    }
  }
  std::erase_if(all, [](const auto& making) { return making.came.empty(); });
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.time_ns < b.time_ns; });
  return all;
}

// The ranks that should take part: all recorded ones; where one machine holds the job, also those that left no trace.
std::vector<int> expected(const Run& run) {
  const bool one_machine = std::all_of(run.ranks.begin(), run.ranks.end(), [&](const auto* rank) {
    const auto placed = rank->template latest<trace::Placement>();
    return !placed.empty() && placed.back().event->local_world_size == run.world_size;
  });
  if (!one_machine) return run.numbers;
  std::vector<int> all(static_cast<std::size_t>(run.world_size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Verdict judge(const Run& run, bool first) {
  const auto makings = makings_of(run);
  if (makings.empty()) return not_triggered("no group was made, as far as recorded");
  for (std::size_t i = first ? 0 : 1; i < (first ? 1 : makings.size()); ++i) {
    const auto& making = makings[i];
    if (const auto ranks = making.left_it_out(); !first && !ranks.empty())
      return found({.ranks = ranks,
                    .evidence = fmt::format("{} no part in making the group {} of other ranks, and "
                                            "made a later one in its place",
                                            ranks_text(ranks, "took", "took"), making.name)});
    const auto inside = making.inside();
    if (inside.empty()) continue;
    const auto missing = making.missing(expected(run));
    if (missing.empty()) continue;
    const bool may_come =
        std::all_of(missing.begin(), missing.end(), [&](int rank) { return was_there(run, rank); });
    return found(
        {.severity = may_come ? Severity::advice : Severity::violation,
         .ranks = missing,
         .evidence = fmt::format("{} in making the group {} (of {}), and {} to take part",
                                 ranks_text(inside, "waits", "wait"), making.name,
                                 plural(static_cast<std::int64_t>(making.members.size()), "rank"),
                                 ranks_text(missing, "never began", "never began"))});
  }
  return clean();
}

}  // namespace
}  // namespace lockstep::diagnose
