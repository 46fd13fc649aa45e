#include <lockstep/diagnose/standstill.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <limits>

namespace lockstep::diagnose {
namespace {

constexpr std::int64_t kPatience = std::chrono::nanoseconds(kStandstill).count();

// Groups and their ranks.
class Members {
 public:
  Members(const trace::Trace& trace, const Run& run, const Calls& calls) {
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
    std::string world;
    for (const auto& [key, of_place] : calls)
      for (const auto& call : of_place) {
        users_[key.first].insert(call.rank);
        if (call.time_ns < first) first = call.time_ns, world = key.first;
      }
    for (int rank = 0; rank < trace.world_size; ++rank) users_[world].insert(rank);
    for (const auto* rank : run.ranks)
      for (const auto& at : rank->all<trace::Group>())
        if (!at.event->members.empty()) {
          auto& named = users_[at.event->name];
          named.clear();
          for (const auto member : at.event->members) named.insert(static_cast<int>(member));
        }
  }
  const std::set<int>& of(const std::string& group) const { return users_.at(group); }

 private:
  std::map<std::string, std::set<int>> users_;
};

std::int64_t last_moment(const trace::Trace& trace) {
  std::int64_t last = 0;
  for (const auto& end : trace.ends) last = std::max(last, end.ended_ns);
  for (const auto& rank : trace.ranks)
    for (const auto& event : rank.events) {
      last = std::max(last, event.time_ns);
      if (const auto* call = std::get_if<trace::Collective>(&event.payload))
        last = std::max(last, call->left_ns);
    }
  return last;
}

const trace::RankEnd* end_of(const trace::Trace& trace, int rank) {
  for (const auto& end : trace.ends)
    if (end.rank == rank) return &end;
  return nullptr;
}

bool ended_by_itself(const trace::RankEnd* end) {
  return end != nullptr && end->how != "deadline" && end->how != "stopped";
}

bool completed(const Call& call) {
  return call.collective->left_ns != 0 && call.collective->failed == 0;
}

// The rank did not enter the place: why, as far as its end tells.
Stand stand_of_missing(const trace::RankEnd* end, const trace::ParticipantTrace* rank) {
  if (end == nullptr) return rank != nullptr && rank->closed ? Stand::exited : Stand::absent;
  if (end->how == "signalled")
    return end->signal == SIGSTOP || end->signal == SIGTSTP ? Stand::stopped : Stand::dead;
  if (end->how == "raised" && !end->collective) return Stand::raised;
  if (end->how == "exited") return Stand::failed;
  if (end->how == "completed") return Stand::exited;
  return Stand::absent;
}

struct Place {
  const std::vector<Call>* calls = nullptr;
  const std::string* group = nullptr;
  std::int64_t sequence = 0;
};

bool arrived(const std::vector<Call>& calls, int rank) {
  return std::any_of(calls.begin(), calls.end(),
                     [&](const auto& call) { return call.rank == rank; });
}

// Not all of the group's ranks completed it, and that is for good: somebody has given up or has waited
// long, or one that is missing has ended.
bool stands_still(const trace::Trace& trace, const std::vector<Call>& calls,
                  const std::set<int>& group, std::int64_t end_ns) {
  if (calls.size() >= group.size() && std::all_of(calls.begin(), calls.end(), completed))
    return false;
  for (const auto& call : calls) {
    if (call.collective->failed != 0) return true;
    if (call.collective->left_ns == 0 && end_ns - call.time_ns >= kPatience) return true;
  }
  return std::any_of(group.begin(), group.end(), [&](int rank) {
    return !arrived(calls, rank) && ended_by_itself(end_of(trace, rank));
  });
}

// The first such place in time.
Place first_incomplete(const trace::Trace& trace, const Calls& calls, const Members& members) {
  const auto end_ns = last_moment(trace);
  Place first;
  for (const auto& [key, of_place] : calls) {
    if (first.calls && first.calls->front().time_ns <= of_place.front().time_ns) continue;
    if (stands_still(trace, of_place, members.of(key.first), end_ns))
      first = {&of_place, &key.first, key.second};
  }
  return first;
}

// When the first of them gave up.
std::int64_t given_up_ns(const std::vector<Call>& calls) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const auto& call : calls)
    if (call.collective->failed != 0) first = std::min(first, call.collective->left_ns);
  return first;
}

std::string signal_name(std::int64_t signal) {
  const char* name = sigabbrev_np(static_cast<int>(signal));
  return "signal " + std::to_string(signal) +
         (name == nullptr ? "" : " (SIG" + std::string(name) + ")");
}

std::string words(const RankStand& rank, const std::string& place) {
  switch (rank.stand) {
    case Stand::waiting:
      return "waits in " + place;
    case Stand::mismatched:
      return "entered " + describe(*rank.call) + " as number " +
             std::to_string(rank.call->sequence);
    case Stand::late:
      return "came to " + place + " when others had given up";
    case Stand::absent:
      if (rank.end && rank.end->how == "raised") return "gave up elsewhere before " + place;
      return "has not arrived at " + place + (rank.end ? ", alive" : "");
    case Stand::exited:
      return "exited in order before " + place;
    case Stand::failed:
      return "exited with code " + std::to_string(rank.end->exit_code) + " before " + place;
    case Stand::raised:
      return "raised an error of its own before " + place;
    case Stand::dead:
      return "was ended by " + signal_name(rank.end->signal) + (rank.call ? " in " : " before ") +
             place;
    case Stand::stopped:
      return "was frozen by " + signal_name(rank.end->signal) + (rank.call ? " in " : " before ") +
             place;
  }
  return "";
}

}  // namespace

std::string to_string(Stand stand) {
  constexpr std::array kNames{"waiting", "mismatched", "late", "absent", "exited",
                              "failed",  "raised",     "dead", "stopped"};
  return kNames.at(static_cast<std::size_t>(stand));
}

std::vector<const RankStand*> Standstill::culprits() const {
  for (const auto kind : {Stand::dead, Stand::stopped, Stand::raised, Stand::failed, Stand::exited,
                          Stand::mismatched, Stand::absent, Stand::late}) {
    std::vector<const RankStand*> of_kind;
    for (const auto& rank : ranks)
      if (rank.stand == kind) of_kind.push_back(&rank);
    if (!of_kind.empty()) return of_kind;
  }
  return {};
}

std::optional<Standstill> standstill(const trace::Trace& trace) {
  const Run run(trace);
  if (run.devices || run.world_size < 2) return std::nullopt;
  auto calls = calls_of(run);
  for (const auto& group : ambiguous_groups(calls))
    std::erase_if(calls, [&](const auto& place) { return place.first.first == group; });
  if (calls.empty()) return std::nullopt;
  const Members members(trace, run, calls);
  const auto place = first_incomplete(trace, calls, members);
  if (!place.calls) return std::nullopt;

  Standstill result{.group = *place.group,
                    .sequence = place.sequence,
                    .step = place.calls->front().step,
                    .time_ns = place.calls->front().time_ns};
  std::vector<int> numbers;
  std::vector<Signature> signatures;
  std::map<std::string, int> operations;
  for (const auto& call : *place.calls) {
    numbers.push_back(call.rank);
    signatures.push_back(signature(*call.collective));
    ++operations[call.collective->op];
    result.time_ns = std::min(result.time_ns, call.time_ns);
  }
  result.operation = std::max_element(operations.begin(), operations.end(), [](auto& a, auto& b) {
                       return a.second < b.second;
                     })->first;
  const auto odd = odd_ones_out(numbers, signatures);
  const auto given_up = given_up_ns(*place.calls);
  for (const int number : members.of(result.group)) {
    RankStand stand{.rank = number, .end = end_of(trace, number)};
    const auto of_rank = std::find_if(run.ranks.begin(), run.ranks.end(), [&](const auto* rank) {
      return rank->participant.rank == number;
    });
    const auto* rank = of_rank == run.ranks.end() ? nullptr : *of_rank;
    if (rank)
      if (const auto all = rank->all<trace::Collective>(); !all.empty())
        stand.last = all.back().event;
    for (const auto& call : *place.calls)
      if (call.rank == number) stand.call = call.collective, stand.entered_ns = call.time_ns;
    const auto without = stand_of_missing(stand.end, rank);
    if (stand.call == nullptr || without == Stand::dead || without == Stand::stopped)
      stand.stand = without;
    else if (stand.entered_ns > given_up)
      stand.stand = Stand::late;
    else if (std::find(odd.begin(), odd.end(), number) != odd.end())
      stand.stand = Stand::mismatched;
    result.ranks.push_back(stand);
  }
  return result;
}

std::string to_text(const Standstill& place) {
  const std::string name = place.operation + " number " + std::to_string(place.sequence);
  std::string text;
  std::vector<int> waiting;
  for (const auto& rank : place.ranks) {
    if (rank.stand == Stand::waiting) {
      waiting.push_back(rank.rank);
      continue;
    }
    text +=
        (text.empty() ? "rank " : "\nrank ") + std::to_string(rank.rank) + " " + words(rank, name);
    if (!rank.call) text += rank.last ? "; its last was " + numbered(*rank.last) : "; it had none";
  }
  if (!waiting.empty())
    text += (text.empty() ? "" : "\n") + ranks_text(waiting, "waits in ", "wait in ") + name;
  return text;
}

}  // namespace lockstep::diagnose
