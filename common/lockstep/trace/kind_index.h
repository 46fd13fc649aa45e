// Where the events of each kind are in a participant's trace: one kind can be read without a walk over all events.
#pragma once

#include <lockstep/trace/recorded_event.h>

#include <array>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace lockstep::trace {

// Valid only while the events do not change, so a copied trace begins without one.
class KindIndex {
 public:
  KindIndex() = default;
  KindIndex(const KindIndex&) noexcept {}
  KindIndex& operator=(const KindIndex&) noexcept {
    clear();
    return *this;
  }

  bool empty() const { return positions_.empty(); }
  void clear() { positions_ = {}; }
  void make(const std::vector<Event>& events);

  // In order.
  std::span<const std::uint32_t> of(std::size_t kind) const {
    return {positions_.data() + begin_[kind], begin_[kind + 1] - begin_[kind]};
  }

 private:
  std::array<std::uint32_t, std::variant_size_v<Payload> + 1> begin_{};
  std::vector<std::uint32_t> positions_;  // by kind, then in order
};

}  // namespace lockstep::trace
