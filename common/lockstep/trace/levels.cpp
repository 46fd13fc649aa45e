#include <lockstep/base/error.h>
#include <lockstep/trace/levels.h>

#include <algorithm>
#include <string>

namespace lockstep::trace {
namespace {

template <class... Kinds>
bool is_one_of(const std::string& kind) {
  return ((kind == Kinds::kName) || ...);
}

void cut(ParticipantTrace& rank, int level) {
  const auto above = [&](const Event& event) {
    return level_of(name_of(event.payload.index())) > level;
  };
  const auto latest = rank.events.begin() + static_cast<std::ptrdiff_t>(rank.last_attempt);
  const auto gone = std::count_if(rank.events.begin(), latest, above);
  rank.last_attempt -= static_cast<std::size_t>(gone);
  rank.events.erase(std::remove_if(rank.events.begin(), rank.events.end(), above),
                    rank.events.end());
}

}  // namespace

int level_of(const std::string& kind) {
  if (is_one_of<Collective, RankEnd>(kind)) return 0;
  if (is_one_of<Dataset, DataFile, Shard, SetEpoch, PassBegin, PassEnd, Samples, RandomNumbers,
                Metric, Decision>(kind))
    return 2;
  return 1;
}

Trace at_level(Trace trace, int level) {
  if (level < 0 || level >= kLevels)
    throw UsageError("there is no level " + std::to_string(level) + "; there are 0, 1 and 2");
  for (auto& rank : trace.ranks) cut(rank, level);
  for (auto& other : trace.alone) cut(other, level);
  return trace;
}

}  // namespace lockstep::trace
