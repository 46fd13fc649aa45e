#include <lockstep/base/text.h>
#include <lockstep/flight/checks.h>
#include <lockstep/flight/words.h>

#include <algorithm>
#include <map>

namespace lockstep::flight {
namespace {

struct Progress {
  std::vector<int> scheduled, started, completed;
  bool timed_out = false;  // retired and not complete: its watchdog gave up
  std::span<const Entry> calls;
};

}  // namespace

std::optional<diagnose::Finding> find_unfinished(const Names& names, const Group& group) {
  bool has_states = false;
  std::map<std::int64_t, Progress> open;
  for (const auto& caller : group.callers)
    for (const auto& entry : caller.collectives) {
      has_states |= entry.state != State::scheduled;
      if (entry.state != State::completed) open.try_emplace(entry.sequence);
    }
  if (!has_states || open.empty()) return std::nullopt;

  const auto sequence = open.begin()->first;
  auto& progress = open.begin()->second;
  for (const auto& caller : group.callers) {
    const auto calls = caller.at(sequence);
    if (calls.empty()) continue;
    if (progress.calls.empty()) progress.calls = calls;
    const auto least = std::min_element(calls.begin(), calls.end(), [](auto& a, auto& b) {
                         return a.state < b.state;
                       })->state;
    (least == State::scheduled ? progress.scheduled
     : least == State::started ? progress.started
                               : progress.completed)
        .push_back(caller.rank);
    for (const auto& call : calls)
      progress.timed_out |= call.retired && call.state != State::completed;
  }

  diagnose::Finding finding;
  finding.pitfall = "no-progress";
  finding.sequence = sequence;
  const auto called =
      "all called " + call_text(names, progress.calls) + call_site(names, progress.calls);
  if (!progress.scheduled.empty() && progress.started.size() + progress.completed.size() > 0) {
    finding.ranks = progress.scheduled;
    finding.evidence = called + ", but on " + ranks_text(finding.ranks) +
                       " it has not started: the GPU is kept by earlier work.";
  } else if (!progress.completed.empty()) {
    finding.ranks = progress.started;
    finding.evidence = called + "; " + ranks_text(progress.completed, "is", "are") +
                       " through and " + ranks_text(finding.ranks, "is", "are") + " not.";
  } else if (progress.timed_out) {
    finding.ranks = group.members;
    finding.evidence = called +
                       " and its time ran out: no rank is at fault, look at the network and the "
                       "GPUs.";
  } else {
    return std::nullopt;  // under way when the dumps were taken
  }
  return finding;
}

}  // namespace lockstep::flight
