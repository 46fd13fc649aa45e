#include <lockstep/trace/kind_index.h>

namespace lockstep::trace {

namespace {

template <std::size_t... I>
constexpr auto names(std::index_sequence<I...>) {
  return std::array{std::variant_alternative_t<I, Payload>::kName...};
}

}  // namespace

const char* name_of(std::size_t kind) {
  return names(std::make_index_sequence<std::variant_size_v<Payload>>{}).at(kind);
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
