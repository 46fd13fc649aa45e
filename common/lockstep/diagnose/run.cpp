#include <lockstep/diagnose/run.h>

#include <algorithm>

namespace lockstep::diagnose {

Run::Run(const trace::Trace& of) : trace(of), world_size(of.world_size) {
  for (const auto& rank : trace.ranks) ranks.push_back(&rank);
  std::sort(ranks.begin(), ranks.end(),
            [](const auto* a, const auto* b) { return a->participant.rank < b->participant.rank; });
  for (const auto* rank : ranks) {
    if (rank->index.empty()) {
      rank->index.make(rank->events);
      indexed_.push_back(rank);
    }
    add(*rank);
  }
  if (!trace.ends.empty()) kinds.insert(trace::RankEnd::kName);
  complete = world_size > 0 && ranks.size() == static_cast<std::size_t>(world_size);
}

Run::Run(const Run& job, const std::vector<int>& members)
    : trace(job.trace), world_size(static_cast<int>(members.size())), is_part(true) {
  for (const auto* rank : job.ranks) {
    if (!std::binary_search(members.begin(), members.end(), rank->participant.rank)) continue;
    ranks.push_back(rank);
    add(*rank);
  }
  if (!trace.ends.empty()) kinds.insert(trace::RankEnd::kName);
  complete = ranks.size() == members.size();
}

void Run::add(const trace::ParticipantTrace& rank) {
  numbers.push_back(rank.participant.rank);
  devices = devices || rank.participant.kind == "device";
  for (std::size_t kind = 0; kind < std::variant_size_v<trace::Payload>; ++kind)
    if (const auto at = rank.index.of(kind); !at.empty()) kinds.insert(trace::name_of(kind));
}

Run::~Run() {
  for (const auto* rank : indexed_) rank->index.clear();
}

const trace::ParticipantTrace& Run::rank(int number) const {
  const auto at = std::lower_bound(numbers.begin(), numbers.end(), number);
  const bool left_one = at != numbers.end() && *at == number;
  return *ranks.at(left_one ? static_cast<std::size_t>(at - numbers.begin()) : ranks.size());
}

const trace::RankEnd* Run::end_of(int number) const {
  const auto found = std::find_if(trace.ends.begin(), trace.ends.end(),
                                  [&](const auto& end) { return end.rank == number; });
  return found == trace.ends.end() ? nullptr : &*found;
}

}  // namespace lockstep::diagnose
