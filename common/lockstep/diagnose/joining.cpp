// Pitfalls of making process groups: it takes all ranks of the job.
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/hang_detectors.h>

#include <algorithm>

namespace lockstep::diagnose {
namespace {

// A group that somebody began to join, in the order in which that happened.
struct Making {
  std::string name;
  std::int64_t time_ns = 0;
  std::vector<std::int64_t> members;
  std::vector<int> came, inside, missing;  // ranks; `inside` came and never got further
};

std::vector<Making> makings_of(const Run& run) {
  std::vector<Making> all;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->latest<trace::Group>())
      if (at.event->action == "join") {
        auto known = std::find_if(all.begin(), all.end(),
                                  [&](const auto& one) { return one.name == at.event->name; });
        if (known == all.end())
          known = all.insert(all.end(), {.name = at.event->name, .time_ns = at.time_ns});
        known->time_ns = std::min(known->time_ns, at.time_ns);
        if (known->members.empty()) known->members = at.event->members;
      }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.time_ns < b.time_ns; });
  for (auto& making : all)
    for (std::size_t r = 0; r < run.ranks.size(); ++r) {
      bool came = false, joined = false;
      for (const auto& at : run.ranks[r]->latest<trace::Group>())
        if (at.event->name == making.name) {
          came = came || at.event->action == "join";
          joined = joined || at.event->action == "joined";
        }
      (came ? making.came : making.missing).push_back(run.numbers[r]);
      if (came && !joined) making.inside.push_back(run.numbers[r]);
    }
  return all;
}

Verdict judge(const trace::Trace& trace, bool first, const std::string& slug) {
  const Run run(trace);
  if (run.devices) return not_triggered("one process drives the devices");
  if (run.world_size < 2) return not_applicable("one rank waits for nobody");
  if (!run.complete) return not_triggered("a rank left no trace");
  const auto makings = makings_of(run);
  if (makings.empty()) return not_triggered("no group was made, as far as recorded");
  for (std::size_t i = first ? 0 : 1; i < (first ? 1 : makings.size()); ++i) {
    const auto& making = makings[i];
    if (making.missing.empty() || making.inside.empty()) continue;
    return found({.pitfall = slug,
                  .ranks = making.missing,
                  .evidence = ranks_text(making.inside, "waits", "wait") + " in making the group " +
                              making.name + " (of " +
                              plural(static_cast<std::int64_t>(making.members.size()), "rank") +
                              "), and " + ranks_text(making.missing, "never began", "never began") +
                              " to take part"});
  }
  return clean();
}

}  // namespace

Verdict rank_skips_init(const trace::Trace& trace) {
  return judge(trace, true, "rank-skips-init");
}

Verdict subgroup_created_by_members_only(const trace::Trace& trace) {
  return judge(trace, false, "subgroup-created-by-members-only");
}

}  // namespace lockstep::diagnose
