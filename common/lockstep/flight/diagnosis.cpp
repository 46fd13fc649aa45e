#include <lockstep/base/text.h>
#include <lockstep/diagnose/nearest.h>
#include <lockstep/flight/checks.h>
#include <lockstep/flight/diagnosis.h>
#include <lockstep/flight/words.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

namespace lockstep::flight {
namespace {

using lockstep::diagnose::Finding;

class Examination {
 public:
  explicit Examination(Dumps dumps) : dumps_(std::move(dumps)), names_(*dumps_.names) {
    diagnosis_.dumps = dumps_.ranks.size();
    for (const auto& dump : dumps_.ranks) diagnosis_.entries += dump.entries.size();
    job_ = put_together(dumps_);
    diagnosis_.groups = job_.groups.size();
    for (std::size_t i = 0; i < dumps_.ranks.size(); ++i)
      newest_group_[dumps_.ranks[i].rank] = job_.newest_group[i];
  }

  Diagnosis result() {
    for (std::size_t i = 0; i < job_.groups.size(); ++i) examine(i);
    order_by_cause();
    for (auto& each : found_) diagnosis_.findings.push_back(std::move(each.finding));
    diagnosis_.missing_ranks = job_.without_dump;
    if (!job_.without_dump.empty()) note_whose_dumps_are_missing();
    note_what_is_cut();
    note_whose_groups_are_guessed();
    return std::move(diagnosis_);
  }

 private:
  struct Found {
    Finding finding;
    int group;
    bool missing;                   // its ranks are those that did not call
    std::vector<int> waiting = {};  // of them, those that wait in another group
    bool follows = false;           // all of them do, and that group has a finding of its own
  };

  // The first place at which the group's ranks part ways; what comes after it follows from it.
  void examine(std::size_t index) {
    const auto& group = job_.groups[index];
    auto mismatch = find_mismatch(names_, group);
    auto missing = find_missing(names_, group);
    if (mismatch && missing && mismatch->sequence < missing->sequence) missing.reset();
    if (mismatch && missing && missing->sequence < mismatch->sequence) mismatch.reset();
    if (missing) add(std::move(*missing), index, true);
    if (mismatch) add(std::move(*mismatch), index);
    if (!missing && !mismatch)
      if (auto unfinished = find_unfinished(names_, group)) add(std::move(*unfinished), index);
    for (auto& unmatched : find_unmatched_p2p(names_, group)) add(std::move(unmatched), index);
  }
  void add(Finding finding, std::size_t index, bool missing = false) {
    finding.evidence =
        "in group " + group_text(names_, job_.groups[index]) + ": " + finding.evidence;
    if (missing) finding.nearest = diagnose::nearest_to(finding.pitfall);
    for (auto& one : finding.nearest) one.reason = "the dumps hold collectives alone";
    found_.push_back({std::move(finding), static_cast<int>(index), missing});
  }

  // A rank that is missing in one group may wait in another, where its newest call is.
  void order_by_cause() {
    std::map<int, const Found*> stuck;  // by group; where ranks are missing, that finding
    for (const auto& each : found_)
      if (each.missing || !stuck.contains(each.group)) stuck[each.group] = &each;
    const auto waits_elsewhere = [&](int rank, int group) {
      const auto where = stuck.find(newest_group_.at(rank));
      if (where == stuck.end() || where->first == group) return false;
      const auto& ranks = where->second->finding.ranks;
      return !where->second->missing || !std::binary_search(ranks.begin(), ranks.end(), rank);
    };
    std::set<int> explained;  // groups whose stall has a cause that is no other group's
    for (auto& each : found_) {
      for (const int rank : each.finding.ranks)
        if (each.missing && waits_elsewhere(rank, each.group)) each.waiting.push_back(rank);
      each.follows = !each.waiting.empty() && each.waiting.size() == each.finding.ranks.size();
      if (!each.follows) explained.insert(each.group);
    }
    for (bool more = true; more;) {
      more = false;
      for (const auto& each : found_)
        if (std::any_of(each.waiting.begin(), each.waiting.end(),
                        [&](int rank) { return explained.contains(newest_group_.at(rank)); }))
          more |= explained.insert(each.group).second;
    }
    for (auto& each : found_) {
      if (each.missing) tell_of_guessed_groups(each.finding, each.group);
      if (each.waiting.empty()) continue;
      const bool circle = !explained.contains(each.group);
      each.follows &= !circle;
      std::set<std::string> where;
      for (const int rank : each.waiting)
        where.insert(
            group_text(names_, job_.groups[static_cast<std::size_t>(newest_group_.at(rank))]));
      each.finding.evidence +=
          " Meanwhile " + ranks_text(each.waiting, "waits", "wait") + " in group " +
          list(std::vector<std::string>(where.begin(), where.end())) +
          (circle ? ", whose ranks wait for this one: the groups' collectives are called in "
                    "different orders, or one was left out."
           : each.follows ? ": this follows from it."
                          : ", which is told of apart.");
    }
    std::stable_partition(found_.begin(), found_.end(),
                          [](const Found& each) { return each.waiting.empty(); });
    std::stable_partition(found_.begin(), found_.end(),
                          [](const Found& each) { return !each.follows; });
  }

  // Where a group's members are not known, one that never called it is not seen, but who called it
  // last may wait for it there.
  void tell_of_guessed_groups(Finding& finding, int group) const {
    std::map<int, std::vector<int>> newest;  // ranks by group
    for (const int rank : finding.ranks)
      if (const int where = newest_group_.at(rank); where >= 0 && where != group)
        newest[where].push_back(rank);
    for (const auto& [where, ranks] : newest)
      if (const auto& other = job_.groups[static_cast<std::size_t>(where)];
          other.known_by == Members::callers)
        finding.evidence += " The newest call of " + ranks_text(ranks) + " is in group " +
                            group_text(names_, other) + ", whose members the dumps do not tell.";
  }

  // With where the others stand, in the largest group concerned, if all of them agree.
  void note_whose_dumps_are_missing() {
    auto note = ranks_text(job_.without_dump, "left no dump", "left no dumps") +
                ": what they did is unknown, and so is whether they live.";
    for (const auto& group : job_.groups) {
      if (!found_.empty()) break;
      if (!std::binary_search(group.members.begin(), group.members.end(),
                              job_.without_dump.front()))
        continue;
      const auto here = where_they_stand(group);
      note += here;
      if (!here.empty()) break;
    }
    diagnosis_.notes.push_back(std::move(note));
  }

  // Of a group whose ranks with dumps all agree.
  std::string where_they_stand(const Group& group) const {
    std::vector<int> ranks;
    std::span<const Entry> calls;
    bool states = false, open = false;
    for (const auto& caller : group.callers) {
      ranks.push_back(caller.rank);
      if (caller.collectives.empty()) continue;
      calls = caller.at(caller.collectives.back().sequence);
      for (const auto& entry : caller.collectives) states |= entry.state != State::scheduled;
      for (const auto& entry : calls) open |= entry.state != State::completed;
    }
    if (calls.empty()) return "";
    return " Of group " + group_text(names_, group) + ", " +
           ranks_text(ranks, "stands", "agree up") + (ranks.size() == 1 ? " at" : " to") +
           " sequence " + std::to_string(calls[0].sequence) + ", " + call_text(names_, calls) +
           call_site(names_, calls) +
           (states && open ? ", which is not complete: they may wait for the ranks without a dump."
                           : ".");
  }

  void note_what_is_cut() {
    std::vector<int> cut, unfinished_only;
    for (const auto& dump : dumps_.ranks) {
      if (dump.is_cut) cut.push_back(dump.rank);
      if (dump.has_holes) unfinished_only.push_back(dump.rank);
    }
    if (!cut.empty())
      diagnosis_.notes.push_back("On " + ranks_text(cut) +
                                 " the buffer was full and has overwritten its oldest calls, which "
                                 "are unknown and not judged "
                                 "(TORCH_FR_BUFFER_SIZE sets how many are kept).");
    if (!unfinished_only.empty())
      diagnosis_.notes.push_back(
          "On " + ranks_text(unfinished_only) +
          " calls in between are not in the dump: finished ones were left out.");
    for (const auto& group : job_.groups) {
      std::vector<int> unknown;
      for (const auto& caller : group.callers)
        if (!last_called(group, caller)) unknown.push_back(caller.rank);
      if (!unknown.empty())
        diagnosis_.notes.push_back(
            "Of group " + group_text(names_, group) + ", all calls of " + ranks_text(unknown) +
            " are overwritten: whether any is missing there cannot be told.");
    }
  }

  // Gloo's dumps do not say who belongs to a group.
  void note_whose_groups_are_guessed() {
    std::string guessed;
    for (const auto& group : job_.groups) {
      const auto size = group.members.size();
      const auto name = group_text(names_, group);
      if (group.known_by == Members::callers) guessed += (guessed.empty() ? "" : ", ") + name;
      if (group.known_by == Members::callers && group.size_by_shapes > size)
        diagnosis_.notes.push_back("Group " + name + " has " +
                                   std::to_string(group.size_by_shapes) +
                                   " ranks by the shapes of its calls, and only " +
                                   ranks_text(group.members, "has", "have") + " called it.");
      if (group.known_by == Members::world && group.size_by_shapes < size)
        diagnosis_.notes.push_back(
            "These dumps do not say how many ranks there are; " + std::to_string(size) +
            " are taken from the files' names. A last rank without a dump would not be noticed.");
    }
    if (!guessed.empty())
      diagnosis_.notes.push_back(
          "These dumps do not say who belongs to a group: the members of " + guessed +
          " are the ranks that called it. One that never did would not be noticed.");
  }

  Dumps dumps_;
  const Names& names_;
  Job job_;
  std::map<int, int> newest_group_;  // of each rank with a dump
  std::vector<Found> found_;
  Diagnosis diagnosis_;
};

}  // namespace

Diagnosis diagnose(Dumps dumps) {
  return Examination(std::move(dumps)).result();
}

}  // namespace lockstep::flight
