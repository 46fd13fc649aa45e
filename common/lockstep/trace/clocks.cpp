#include <lockstep/trace/clocks.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::trace {
namespace {

// Differences of clocks in a damaged trace may be any numbers: they wrap.
std::int64_t sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
std::int64_t difference(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

// By how much the wall clock is ahead of the clock of the participant's events.
std::int64_t epoch_of(const ParticipantTrace& trace) {
  return difference(trace.started_unix_ns, trace.started_ns);
}

// On another machine the events' clock began at another boot.
bool share_a_clock(std::int64_t epoch, std::int64_t other) {
  constexpr std::int64_t kSameMachine = 1'000'000'000;
  const auto apart = difference(other, epoch);
  return apart <= kSameMachine && apart >= -kSameMachine;
}

void shift(ParticipantTrace& trace, std::int64_t by_ns) {
  const auto move = [&](std::int64_t& time) { time = moved(time, by_ns); };
  move(trace.started_ns);
  for (auto& event : trace.events) {
    move(event.time_ns);
    if (event.left_ns != 0) move(event.left_ns);
    if (auto* end = event.change<RankEnd>()) move(end->ended_ns);
  }
}

// Where one rank was inside of a collective that nobody leaves before all have come.
struct Stay {
  std::int64_t entered_ns = 0, left_ns = 0;
};
using Stays = std::map<std::pair<std::string_view, std::int64_t>, Stay>;  // by group and sequence

Stays stays_of(const ParticipantTrace& rank) {
  Stays stays;
  for (const auto& at : rank.all<Collective>()) {
    const auto& call = *at.event;
    const bool joins = call.op.starts_with("allreduce") || call.op.starts_with("allgather") ||
                       call.op.starts_with("barrier");
    if (joins && at.left_ns != 0 && call.failed == 0)
      stays[{call.group, call.sequence}] = {at.time_ns, at.left_ns};
  }
  return stays;
}

// By how much another clock may be moved so that no stay contradicts another.
struct Bounds {
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  std::int64_t most = std::numeric_limits<std::int64_t>::max();

  void take(const Stays& first, const Stays& other) {
    for (const auto& [place, stay] : other) {
      const auto found = first.find(place);
      if (found == first.end()) continue;
      least = std::max(least, difference(found->second.entered_ns, stay.left_ns));
      most = std::min(most, difference(found->second.left_ns, stay.entered_ns));
    }
  }
  // 0 where they are right as they are, or tell nothing.
  std::int64_t correction() const {
    if (least > most || (least <= 0 && most >= 0)) return 0;
    return sum(least, difference(most, least) / 2);
  }
};

}  // namespace

std::int64_t moved(std::int64_t time_ns, std::int64_t by_ns) {
  return std::clamp(sum(time_ns, by_ns), -kMostTime, kMostTime);
}

void to_clock_of(const ParticipantTrace& first, ParticipantTrace& other) {
  if (!share_a_clock(epoch_of(first), epoch_of(other)))
    shift(other, difference(epoch_of(other), epoch_of(first)));
}

void to_one_clock(std::vector<ParticipantTrace>& ranks) {
  std::map<std::int64_t, std::vector<ParticipantTrace*>> machines;  // others, by their clocks
  const auto& first = ranks.front();
  for (auto& rank : ranks) {
    const auto epoch = epoch_of(rank);
    if (share_a_clock(epoch_of(first), epoch)) continue;
    const auto known = std::find_if(machines.begin(), machines.end(), [&](const auto& machine) {
      return share_a_clock(machine.first, epoch);
    });
    machines[known == machines.end() ? epoch : known->first].push_back(&rank);
  }
  if (machines.empty()) return;
  const auto stays = stays_of(first);
  for (auto& [epoch, of_machine] : machines) {
    Bounds bounds;
    for (auto* rank : of_machine) {
      to_clock_of(first, *rank);
      bounds.take(stays, stays_of(*rank));
    }
    for (auto* rank : of_machine) shift(*rank, bounds.correction());
  }
}

}  // namespace lockstep::trace
