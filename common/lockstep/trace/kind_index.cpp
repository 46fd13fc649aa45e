#include <lockstep/trace/kind_index.h>

namespace lockstep::trace {

const char* name_of(const Payload& payload) {
  return std::visit([](const auto& event) { return event.kName; }, payload);
}

void KindIndex::make(const std::vector<Event>& events) {
  begin_ = {};
  for (const auto& event : events) ++begin_[event.payload.index() + 1];
  for (std::size_t kind = 1; kind < begin_.size(); ++kind) begin_[kind] += begin_[kind - 1];
  positions_.resize(events.size());
  auto next = begin_;
  for (std::size_t i = 0; i < events.size(); ++i)
    positions_[next[events[i].payload.index()]++] = static_cast<std::uint32_t>(i);
}

}  // namespace lockstep::trace
