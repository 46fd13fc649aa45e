#include <lockstep/trace/alone_before.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

namespace lockstep::trace {
namespace {

// Where a rank enters the job's first collective, and how many updates it had made by then.
struct Begin {
  std::size_t at = 0;
  std::int64_t updates = 0;
};

std::optional<Begin> begin_of(const ParticipantTrace& rank) {
  Begin begin;
  for (; begin.at < rank.events.size(); ++begin.at) {
    const auto& event = rank.events[begin.at];
    if (event.is<Update>()) ++begin.updates;
    const auto* call = event.as<Collective>();
    if (call != nullptr && call->group == "0" && call->sequence == 1) return begin;
  }
  return std::nullopt;
}

const Model* first_model(const ParticipantTrace& rank, std::size_t from, std::size_t to) {
  for (std::size_t i = from; i < to; ++i)
    if (const auto* model = rank.events[i].as<Model>()) return model;
  return nullptr;
}

bool trains_another_model(const ParticipantTrace& rank, const Begin& begin) {
  const auto* before = first_model(rank, 0, begin.at);
  const auto* after = first_model(rank, begin.at, rank.events.size());
  return before != nullptr && after != nullptr &&
         (before->names != after->names || before->shapes != after->shapes);
}

// Whatever the rank trains, its job has these.
bool is_of_the_job(const Event& event) {
  if (const auto* set_up = event.as<Configuration>()) return set_up->of == "program";
  return event.is<Group>() || event.is<Collective>() || event.is<Placement>() ||
         event.is<Device>() || event.is<Attempt>() || event.is<StoreCall>() ||
         event.is<DataFile>() || event.is<CheckpointFile>() || event.is<SharedMemory>() ||
         event.is<Spawn>() || event.is<Intent>();
}

void leave_out(ParticipantTrace& rank, const Begin& begin) {
  std::vector<Event> kept;
  for (std::size_t i = 0; i < rank.events.size(); ++i) {
    auto& event = rank.events[i];
    if (i < begin.at && !is_of_the_job(event)) continue;
    // The others are before their first step where they meet, unless they have begun it.
    event.step = std::max<std::int64_t>(event.step - begin.updates, -1);
    kept.push_back(std::move(event));
  }
  rank.events = std::move(kept);
}

}  // namespace

void leave_out_alone_before(Trace& attempt) {
  if (attempt.ranks.size() < 2) return;
  std::vector<Begin> begins;
  for (const auto& rank : attempt.ranks) {
    const auto begin = begin_of(rank);
    if (!begin) return;
    begins.push_back(*begin);
  }
  const bool one_waits = std::any_of(begins.begin(), begins.end(),
                                     [](const Begin& begin) { return begin.updates == 0; });
  for (std::size_t r = 0; one_waits && r < begins.size(); ++r)
    if (begins[r].updates > 0 && trains_another_model(attempt.ranks[r], begins[r]))
      leave_out(attempt.ranks[r], begins[r]);
}

}  // namespace lockstep::trace
