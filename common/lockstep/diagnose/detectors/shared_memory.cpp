// Shared memory that is smaller than what a job wants to keep there.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>

#include <cerrno>
#include <csignal>
#include <map>

namespace lockstep::diagnose {
namespace {
Verdict small_shared_memory(const Run& run);
}  // namespace

std::vector<Detector> shared_memory_detectors() {
  return {
      // Rule: a rank was refused what it reserves (ENOSPC), and did not end in order; or a bus
      // error ends it, and it, or the ranks together, reserve more than there was. Not fooled by a
      // small one in which all has room, by a rank that does without, nor by another death.
      {.slug = "small-shared-memory",
       .equation = Equation::one_job,
       .needs = {"shared_memory"},
       .fewest = 1,
       .complete = false,
       .stage = Stage::start,
       .detect = small_shared_memory},
  };
}

namespace {
using trace::SharedMemory;

struct Reservation {
  int rank;
  std::int64_t step, time_ns;
  const SharedMemory* event;
};

bool ended_in_order(const Run& run, const trace::ParticipantTrace& rank) {
  const auto* end = run.end_of(rank.participant.rank);
  return end ? end->how == "completed" : rank.closed;
}

bool died_of_memory(const Run& run, int rank) {
  const auto* end = run.end_of(rank);
  return end && end->how == "signalled" && end->signal == SIGBUS;
}

// What all ranks reserve in one file system, beside what it had when the first of them came.
struct Total {
  std::int64_t needed = 0, free = 0, first_ns = 0;
};

std::string mebibytes(std::int64_t bytes) {
  return number(static_cast<double>(bytes) / (1 << 20)) + " MiB";
}

Verdict small_shared_memory(const Run& run) {
  std::vector<Reservation> all;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : run.ranks[r]->latest<SharedMemory>())
      all.push_back({run.numbers[r], at.step, at.time_ns, at.event});
  if (all.empty()) return not_triggered("no rank recorded shared memory that it reserves");

  std::map<std::uint64_t, Total> totals;
  for (const auto& each : all) {
    if (each.event->action != "reserve") continue;
    auto& total = totals[each.event->file_system];
    if (total.needed == 0 || each.time_ns < total.first_ns) {
      total.free = each.event->free;
      total.first_ns = each.time_ns;
    }
    total.needed += each.event->needed;
  }

  const Reservation* first = nullptr;
  std::vector<int> ranks;
  for (const auto& each : all) {
    const auto& event = *each.event;
    const auto& total = totals[event.file_system];
    // One that is told so may do without; one that was promised more than there is dies where it uses it.
    const bool was_refused = event.action == "failed" && event.error == ENOSPC &&
                             !ended_in_order(run, run.rank(each.rank));
    const bool died = event.action == "reserve" && died_of_memory(run, each.rank) &&
                      (event.needed > event.free || total.needed > total.free);
    if (!was_refused && !died) continue;
    if (!first) first = &each;
    if (ranks.empty() || ranks.back() != each.rank) ranks.push_back(each.rank);
  }
  if (!first) return clean();
  const auto& event = *first->event;
  return found({.ranks = ranks,
                .step = first->step,
                .evidence = fmt::format(
                    "rank {} needs {} of shared memory, where {} of {} are free{}", first->rank,
                    mebibytes(event.needed), mebibytes(event.free), mebibytes(event.total),
                    died_of_memory(run, first->rank) ? "; it died of a bus error" : "")});
}

}  // namespace
}  // namespace lockstep::diagnose
