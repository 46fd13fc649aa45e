#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/stall.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <limits>

namespace lockstep::diagnose {
namespace {

constexpr auto kNever = std::numeric_limits<std::int64_t>::max();

// What is known of the job's ranks, by number.
struct Ranks {
  explicit Ranks(const trace::Trace& trace) {
    for (const auto& end : trace.ends) {
      ends[static_cast<int>(end.rank)] = &end;
      last_ns = std::max(last_ns, end.ended_ns);
      if (end.how == "stopped") told_ns = std::min(told_ns, end.ended_ns);
    }
    for (const auto& rank : trace.ranks) {
      traces[rank.participant.rank] = &rank;
      for (std::size_t i = rank.last_attempt; i < rank.events.size(); ++i)
        last_ns = std::max({last_ns, rank.events[i].time_ns, rank.events[i].left_ns});
    }
    // What is gone without a word may have been told to end, too.
    for (const auto& [number, rank] : traces)
      if (end_of(number) == nullptr && !rank->closed && !rank->runs)
        told_ns = std::min(told_ns, last_ns);
    // Not where one ended before, and its launcher then told the others.
    if (std::any_of(trace.ends.begin(), trace.ends.end(), [&](const auto& end) {
          return end.how != "stopped" && end.how != "completed" && end.ended_ns <= told_ns;
        }))
      told_ns = kNever;
  }
  const trace::ParticipantTrace* trace_of(int rank) const {
    const auto found = traces.find(rank);
    return found == traces.end() ? nullptr : found->second;
  }
  const trace::RankEnd* end_of(int rank) const {
    const auto found = ends.find(rank);
    return found == ends.end() ? nullptr : found->second;
  }
  bool ended_in_order(int rank) const {
    if (const auto* end = end_of(rank)) return end->how == "completed";
    return traces.contains(rank) && traces.at(rank)->closed;
  }
  // By an end of its own, whatever it was. Of a signal that nobody knows it may have been an order to all.
  bool ended_by_itself(int rank) const {
    const auto* end = end_of(rank);
    if (end == nullptr || (end->how == "signalled" && end->signal == 0)) return false;
    return end->how != "deadline" && end->how != "stopped";
  }
  // Nothing follows from what is missing in its trace.
  bool is_unknown(int rank) const {
    const auto* trace = trace_of(rank);
    if (trace == nullptr) return false;
    return trace->truncated || (trace->latest<trace::Collective>().empty() && ended_in_order(rank));
  }
  // How long it was inside: until it left, else until it ended or the last moment of all; and no longer than until the
  // ranks were told to end.
  std::int64_t waited_ns(const Call& call) const {
    auto until = call.left_ns != 0 ? call.left_ns : last_ns;
    if (const auto* end = end_of(call.rank); end != nullptr && call.left_ns == 0)
      until = std::min(until, end->ended_ns);
    return std::min(until, told_ns) - call.time_ns;
  }
  // What fails once the ranks were told to end comes of that.
  bool failed(const Call& call) const {
    return call.collective->failed != 0 && call.left_ns <= told_ns;
  }
  // Whether it can be known how long it was inside. While a rank runs it may go on at any moment.
  bool is_over(const Call& call) const {
    return call.left_ns != 0 || end_of(call.rank) != nullptr || !traces.at(call.rank)->runs;
  }

  std::map<int, const trace::ParticipantTrace*> traces;
  std::map<int, const trace::RankEnd*> ends;
  std::int64_t last_ns = std::numeric_limits<std::int64_t>::min();
  std::int64_t told_ns = kNever;  // the first was told to end
};

// Groups and their ranks.
class Members {
 public:
  Members(const Run& run, const Calls& calls) {
    const std::vector<Call>* before = nullptr;  // mostly of the same ranks
    const auto one_rank = [](const Call& a, const Call& b) { return a.rank == b.rank; };
    for (const auto& [key, of_place] : calls) {
      auto& users = users_[key.first];
      if (before == nullptr || users.empty() ||
          !std::equal(before->begin(), before->end(), of_place.begin(), of_place.end(), one_rank))
        for (const auto& call : of_place) users.insert(call.rank);
      before = &of_place;
    }
    const auto most = std::max_element(
        users_.begin(), users_.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    const auto half = static_cast<std::size_t>(run.world_size) / 2;
    if (most->second.size() > half || users_.size() == 1)
      for (int rank = 0; rank < run.world_size; ++rank) most->second.insert(rank);
    for (const auto* rank : run.ranks)
      for (const auto& at : rank->latest<trace::Group>())
        if (!at.event->members.empty() && at.event->action != "replicas")
          users_[at.event->name] = {at.event->members.begin(), at.event->members.end()};
  }
  const std::set<int>& of(const std::string& group) const { return users_.at(group); }

 private:
  std::map<std::string, std::set<int>> users_;
};

const Call* call_of(const std::vector<Call>& calls, int rank) {
  const auto found = std::lower_bound(calls.begin(), calls.end(), rank,
                                      [](const Call& call, int of) { return call.rank < of; });
  return found == calls.end() || found->rank != rank ? nullptr : &*found;
}

// Then nobody stalls, and the places need not be looked at.
bool all_left_in_order(const Run& run) {
  return std::all_of(run.ranks.begin(), run.ranks.end(), [](const auto* rank) {
    const auto& events = rank->events;
    return std::all_of(events.begin(), events.end(), [](const trace::Event& event) {
      const auto* call = event.as<trace::Collective>();
      return call == nullptr || (event.left_ns != 0 && call->failed == 0);
    });
  });
}

struct Position {
  const std::vector<Call>* calls = nullptr;
  std::string group;
  std::int64_t sequence = 0;
  std::int64_t time_ns = 0;  // when the first rank entered it
};

// Somebody was left inside of it for good, or it failed.
bool stalls(const Ranks& ranks, const std::vector<Call>& calls, const std::set<int>& group,
            std::chrono::nanoseconds patience) {
  bool under_way = false;
  for (const auto& call : calls) {
    if (ranks.failed(call)) return true;
    if (completed(call) || ranks.ended_in_order(call.rank)) continue;
    if ((ranks.is_over(call) || patience.count() == 0) && ranks.waited_ns(call) >= patience.count())
      return true;
    under_way = true;
  }
  return under_way && std::any_of(group.begin(), group.end(), [&](int rank) {
           return call_of(calls, rank) == nullptr && ranks.ended_by_itself(rank);
         });
}

// All of the group's ranks completed a later one: what was, was mended.
bool all_got_past(const Calls& calls, const Position& place, const std::set<int>& group) {
  std::set<int> past;
  for (auto at = calls.upper_bound({place.group, place.sequence});
       at != calls.end() && at->first.first == place.group; ++at)
    for (const auto& call : at->second)
      if (completed(call)) past.insert(call.rank);
  return std::includes(past.begin(), past.end(), group.begin(), group.end());
}

// A job that is told to end may be anywhere. It is said to stall where a rank waits for longer than for anything that
// came in the end; but for a group's first one, before which the ranks begin some time apart.
std::chrono::nanoseconds patience_of(const Ranks& ranks, const Calls& calls,
                                     std::chrono::nanoseconds patience) {
  if (ranks.told_ns == kNever || patience.count() == 0) return patience;
  std::set<std::string> begun;
  for (const auto& [key, of_place] : calls) {
    if (begun.insert(key.first).second) continue;
    for (const auto& call : of_place)
      if (completed(call))
        patience = std::max(patience, std::chrono::nanoseconds(2 * ranks.waited_ns(call)));
  }
  return patience;
}

// The first such place in time.
Position first_incomplete(const Ranks& ranks, const Calls& calls, const Members& members,
                          std::chrono::nanoseconds patience) {
  Position first;
  for (const auto& [key, of_place] : calls) {
    const Position place{&of_place, key.first, key.second, entered_ns(of_place)};
    if (first.calls && first.time_ns <= place.time_ns) continue;
    const auto& group = members.of(key.first);
    if (stalls(ranks, of_place, group, patience) && !all_got_past(calls, place, group))
      first = place;
  }
  return first;
}

// How those that entered it fared, all together.
struct Outcome {
  explicit Outcome(const std::vector<Call>& calls) : odd(odd_ranks(calls)) {
    for (const auto& call : calls) {
      if (call.collective->failed == 0) continue;
      if (call.left_ns - call.time_ns >= kStallTimeNs)
        given_up_ns = std::min(given_up_ns, call.left_ns);
      else
        cut_off = true;
    }
  }
  // When the first of them gave up: failed after it had waited. A peer that goes cuts off at once.
  std::int64_t given_up_ns = kNever;
  bool cut_off = false;
  std::vector<int> odd;  // ascending
};

// How a rank ended, as far as that explains anything; `absent` where it does not.
RankState state_by_end(const trace::RankEnd* end) {
  if (end == nullptr) return RankState::absent;
  if (end->how == "signalled")
    return end->signal == SIGSTOP || end->signal == SIGTSTP ? RankState::stopped : RankState::dead;
  if (end->how == "raised" && !end->collective) return RankState::raised;
  if (end->how == "exited") return RankState::failed;
  return RankState::absent;
}

// The operation that a rank which has not arrived is inside of; null where there is none.
const trace::Collective* inside_of(const trace::ParticipantTrace* rank) {
  if (rank == nullptr || rank->closed) return nullptr;
  const trace::Collective* inside = nullptr;
  for (const auto& at : rank->latest<trace::Collective>())
    if (at.left_ns == 0) inside = at.event;
  return inside;
}

RankState state_of_missing(const Ranks& ranks, int rank) {
  const auto by_end = state_by_end(ranks.end_of(rank));
  if (by_end != RankState::absent) return by_end;
  if (ranks.ended_in_order(rank)) return RankState::exited;
  return inside_of(ranks.trace_of(rank)) != nullptr ? RankState::elsewhere : RankState::absent;
}

RankState state_of_present(const Ranks& ranks, const Call& call, const Outcome& outcome) {
  const auto* end = ranks.end_of(call.rank);
  const bool left = call.left_ns != 0;
  const auto by_end = state_by_end(end);
  // A rank that ends itself after it has waited, as NCCL's watchdog does, is its peers' victim.
  const bool gave_up = end != nullptr && end->signal == SIGABRT &&
                       (call.collective->failed != 0 || ranks.waited_ns(call) >= kStallTimeNs);
  if (by_end == RankState::stopped || (by_end == RankState::dead && !gave_up)) return by_end;
  if (!left && (by_end == RankState::raised || by_end == RankState::failed)) return by_end;
  if (std::binary_search(outcome.odd.begin(), outcome.odd.end(), call.rank))
    return RankState::mismatched;
  if (call.time_ns > outcome.given_up_ns) return RankState::late;
  const auto* trace = ranks.trace_of(call.rank);
  if (!left && end == nullptr && trace && !trace->closed && outcome.cut_off) return RankState::lost;
  return RankState::waiting;
}

std::string words(const RankAtStall& rank, const std::string& place) {
  switch (rank.state) {
    case RankState::waiting:
      return "waits in " + place;
    case RankState::elsewhere:
      return fmt::format("has not arrived at {}; it is inside of {}{}", place, numbered(*rank.last),
                         rank.last->root >= 0 && is_point_to_point(*rank.last)
                             ? fmt::format(" with rank {}", rank.last->root)
                             : " of group " + rank.last->group);
    case RankState::lost:
      return fmt::format("entered {}, and is not heard of any more", place);
    case RankState::mismatched:
      return fmt::format("entered {} as number {}", describe(*rank.call), rank.call->sequence);
    case RankState::late:
      return fmt::format("came to {} when others had given up", place);
    case RankState::absent:
      if (rank.end && rank.end->how == "raised") return "gave up elsewhere before " + place;
      return fmt::format("has not arrived at {}{}", place, rank.end ? ", alive" : "");
    case RankState::exited:
      // Without its launcher's word.
      return (rank.end ? "exited in order before "
                       : "exited in order, or after an exception that it caught, before ") +
             place;
    case RankState::failed:
      return fmt::format("exited with code {} before {}", rank.end->exit_code, place);
    case RankState::raised:
      return "raised an error of its own before " + place;
    case RankState::dead:
      return fmt::format("{} {} {}",
                         rank.end->signal == 0
                             ? "is gone without a word (a signal, or _exit)"
                             : "was ended by " + signal_name(static_cast<int>(rank.end->signal)),
                         rank.call ? "in" : "before", place);
    case RankState::stopped:
      return fmt::format("was frozen by {} {} {}", signal_name(static_cast<int>(rank.end->signal)),
                         rank.call ? "in" : "before", place);
  }
  return "";
}

}  // namespace

std::string to_string(RankState state) {
  constexpr std::array kNames{"waiting", "elsewhere", "mismatched", "late", "absent", "exited",
                              "failed",  "raised",    "lost",       "dead", "stopped"};
  return kNames.at(static_cast<std::size_t>(state));
}

std::vector<const RankAtStall*> Stall::culprits() const {
  for (const auto kind : {RankState::dead, RankState::stopped, RankState::lost, RankState::raised,
                          RankState::failed, RankState::exited, RankState::mismatched,
                          RankState::absent, RankState::late, RankState::elsewhere}) {
    std::vector<const RankAtStall*> of_kind;
    for (const auto& rank : ranks)
      if (rank.state == kind) of_kind.push_back(&rank);
    if (!of_kind.empty()) return of_kind;
  }
  return {};
}

namespace {

std::optional<Stall> find_stall(const Run& run, std::chrono::milliseconds patience) {
  if (run.devices || run.world_size < 2 || all_left_in_order(run)) return std::nullopt;
  const auto& calls = unambiguous_calls(run);
  if (calls.empty()) return std::nullopt;
  const Ranks ranks(run.trace);
  const Members members(run, calls);
  const auto place = first_incomplete(ranks, calls, members, patience_of(ranks, calls, patience));
  if (!place.calls) return std::nullopt;

  Stall result{.group = place.group,
               .sequence = place.sequence,
               .step = place.calls->front().step,
               .time_ns = place.time_ns};
  std::map<std::string, int> operations;
  for (const auto& call : *place.calls) ++operations[call.collective->op];
  result.operation = std::max_element(operations.begin(), operations.end(), [](auto& a, auto& b) {
                       return a.second < b.second;
                     })->first;
  const Outcome outcome(*place.calls);
  for (const int number : members.of(result.group)) {
    const auto* call = call_of(*place.calls, number);
    if (call == nullptr && ranks.is_unknown(number)) continue;
    const auto* of_rank = ranks.trace_of(number);
    RankAtStall at{.rank = number, .end = ranks.end_of(number), .recorded = of_rank != nullptr};
    if (of_rank)
      if (const auto all = of_rank->latest<trace::Collective>(); !all.empty())
        at.last = all.back().event;
    if (call) {
      at.call = call->collective;
      at.entered_ns = call->time_ns;
      at.state = state_of_present(ranks, *call, outcome);
    } else {
      at.state = state_of_missing(ranks, number);
      if (at.state == RankState::elsewhere) at.last = inside_of(of_rank);
    }
    result.ranks.push_back(at);
  }
  return result;
}

}  // namespace

std::optional<Stall> stall_of(const trace::Trace& trace, std::chrono::milliseconds patience) {
  return find_stall(Run(trace), patience);
}

bool ended_in_order(const Run& run) {
  return run.complete && !stall_of(run) &&
         std::all_of(run.ranks.begin(), run.ranks.end(),
                     [](const auto* rank) { return rank->closed; });
}

const std::optional<Stall>& stall_of(const Run& run) {
  return run.once(+[](const Run& of) { return find_stall(of, kStallTime); });
}

std::string to_text(const Stall& place) {
  const std::string name = fmt::format("{} number {}", place.operation, place.sequence);
  std::string text;
  std::vector<int> waiting;
  for (const auto& rank : place.ranks) {
    if (rank.state == RankState::waiting) {
      waiting.push_back(rank.rank);
      continue;
    }
    text += fmt::format("{}rank {} {}", text.empty() ? "" : "\n", rank.rank, words(rank, name));
    if (!rank.call && rank.state != RankState::elsewhere)
      text += !rank.recorded ? "; its trace is missing"
              : rank.last    ? "; its last was " + numbered(*rank.last)
                             : "; it had none";
  }
  const bool all_wait = waiting.size() == place.ranks.size();
  if (!waiting.empty())
    text += (text.empty() ? "" : "\n") + ranks_text(waiting, "waits in ", "wait in ") + name;
  if (all_wait) text += "\nevery rank has come to it: look at what is between them, the network";
  return text;
}

std::string one_line(const Stall& place) {
  auto text = to_text(place);
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos;)
    text.replace(at, 1, "; ");
  return text;
}

}  // namespace lockstep::diagnose
