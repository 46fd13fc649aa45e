#include <lockstep/trace/alone_before.h>
#include <lockstep/trace/point_to_point.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace lockstep::trace {
namespace {

// Whether it is a call of all ranks.
const Collective* call_of_all(const Event& event) {
  const auto* call = event.as<Collective>();
  return call != nullptr && call->group == "0" && !is_point_to_point(*call) ? call : nullptr;
}

// The sequence of the last such call before the rank's first update; 0: none.
std::int64_t calls_before_updates(const ParticipantTrace& rank) {
  std::int64_t last = 0;
  for (const auto& event : rank.events) {
    if (event.is<Update>()) break;
    if (const auto* call = call_of_all(event)) last = call->sequence;
  }
  return last;
}

// How many updates a rank had made when it entered each of these calls, by sequence.
std::map<std::int64_t, std::int64_t> updates_by_call(const ParticipantTrace& rank) {
  std::map<std::int64_t, std::int64_t> updates_at;
  std::int64_t updates = 0;
  for (const auto& event : rank.events) {
    if (event.is<Update>()) ++updates;
    if (const auto* call = call_of_all(event)) updates_at.emplace(call->sequence, updates);
  }
  return updates_at;
}

// The place of the update with this number, counted from 1.
std::size_t place_of_update(const ParticipantTrace& rank, std::int64_t number) {
  std::size_t at = 0;
  while (number > 0)
    if (rank.events[at++].is<Update>()) --number;
  return at - 1;
}

// The model that the rank trains at this place.
const Model* model_at(const ParticipantTrace& rank, std::size_t place) {
  const Model* model = nullptr;
  for (std::size_t i = 0; i < place; ++i)
    if (const auto* told = rank.events[i].as<Model>()) model = told;
  return model;
}

bool goes_on_with_another_model(const ParticipantTrace& rank, std::size_t last) {
  auto next = last + 1;
  while (next < rank.events.size() && !rank.events[next].is<Update>()) ++next;
  const auto *before = model_at(rank, last), *after = model_at(rank, next);
  return next < rank.events.size() && before != nullptr && after != nullptr &&
         (before->names != after->names || before->shapes != after->shapes);
}

// Events that belong to the job, whatever the rank trains.
bool is_of_the_job(const Event& event) {
  if (const auto* told = event.as<Settings>()) return told->of == SettingsOf::program;
  return event.is<Group>() || event.is<Collective>() || event.is<Placement>() ||
         event.is<Device>() || event.is<Attempt>() || event.is<StoreCall>() ||
         event.is<DataFile>() || event.is<CheckpointFile>() || event.is<SharedMemory>() ||
         event.is<Spawn>() || event.is<Intent>();
}

// What comes before `begin`, with so many updates.
void leave_out(ParticipantTrace& rank, std::size_t begin, std::int64_t updates) {
  std::vector<Event> kept;
  for (std::size_t i = 0; i < rank.events.size(); ++i) {
    auto& event = rank.events[i];
    if (i < begin && !is_of_the_job(event)) continue;
    event.step = static_cast<std::int32_t>(std::max<std::int64_t>(event.step - updates, -1));
    kept.push_back(std::move(event));
  }
  rank.events = std::move(kept);
}

// Whether the ranks share what they train: by what an engine or calls have done since the training began.
class Sharing {
 public:
  void see(const Event& event) {
    has_engine_ = has_engine_ || event.is<Engine>();
    if (const auto* told = event.as<Model>()) model_ = told;
    if (const auto* call = event.as<Collective>())
      numbers_[call->dtype] +=
          std::accumulate(call->sizes.begin(), call->sizes.end(), std::int64_t{0});
  }
  // An engine took the model over, or so many numbers of its types went between the ranks as it has.
  bool is_shared() const {
    if (has_engine_ || model_ == nullptr) return has_engine_;
    std::int64_t elements = 0, sent = 0;
    for (const auto& shape : model_->shapes)
      elements += std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    for (const auto& [dtype, numbers] : numbers_)
      if (std::ranges::find(model_->dtypes, dtype) != model_->dtypes.end()) sent += numbers;
    return sent >= elements;
  }

 private:
  bool has_engine_ = false;
  const Model* model_ = nullptr;
  std::map<std::string, std::int64_t> numbers_;  // by type
};

// Models that the rank trained for itself, and then another one that the ranks share.
void leave_out_models_of_its_own(ParticipantTrace& rank) {
  std::size_t begin = 0;
  std::int64_t updates = 0, of_its_own = 0;
  Sharing since;
  for (std::size_t i = 0; i < rank.events.size(); ++i) {
    const auto& event = rank.events[i];
    if (event.is<AnotherModel>()) {
      if (since.is_shared()) break;
      begin = i, of_its_own = updates;
      since = {};
    }
    if (event.is<Update>()) ++updates;
    since.see(event);
  }
  if (of_its_own > 0 && since.is_shared()) leave_out(rank, begin, of_its_own);
}

// One rank trains another model, and the others wait.
void leave_out_what_others_waited_for(Trace& attempt) {
  std::set<std::int64_t> before;
  for (const auto& rank : attempt.ranks) before.insert(calls_before_updates(rank));
  if (before.size() < 2) return;  // as in most jobs
  std::vector<std::map<std::int64_t, std::int64_t>> calls;
  for (const auto& rank : attempt.ranks) calls.push_back(updates_by_call(rank));
  // Each rank's updates at the last call in which a rank waits that has made none.
  std::vector<std::int64_t> alone;
  for (const auto& [sequence, updates] : calls.front()) {
    std::vector<std::int64_t> here;
    for (const auto& of_rank : calls)
      if (const auto at = of_rank.find(sequence); at != of_rank.end()) here.push_back(at->second);
    if (here.size() < calls.size() || *std::min_element(here.begin(), here.end()) > 0) break;
    if (*std::max_element(here.begin(), here.end()) > 0) alone = std::move(here);
  }
  for (std::size_t r = 0; r < alone.size(); ++r) {
    if (alone[r] == 0) continue;
    auto& rank = attempt.ranks[r];
    const auto last = place_of_update(rank, alone[r]);
    if (!goes_on_with_another_model(rank, last)) continue;
    // The last update's parameters may be recorded after it, such as where the model is saved.
    auto begin = last + 1;
    while (!rank.events[begin].is<Model>() && call_of_all(rank.events[begin]) == nullptr) ++begin;
    leave_out(rank, begin, alone[r]);
  }
}

}  // namespace

bool shares_a_model(const ParticipantTrace& rank) {
  Sharing since;
  for (const auto& event : rank.events) {
    if (event.is<AnotherModel>()) {
      if (since.is_shared()) return true;
      since = {};
    }
    since.see(event);
  }
  return since.is_shared();
}

void leave_out_alone_before(Trace& attempt) {
  for (auto& rank : attempt.ranks) leave_out_models_of_its_own(rank);
  leave_out_what_others_waited_for(attempt);
}

}  // namespace lockstep::trace
