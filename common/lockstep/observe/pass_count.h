// How much of a sampler's pass is still to be drawn.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

// A sampler may deal batches of no samples: they are counted by themselves.
class PassCount {
 public:
  void dealt(const std::vector<std::int64_t>& ids) { count(ids, 1); }
  void all_dealt() { all_dealt_ = true; }
  void drawn(const std::vector<std::int64_t>& ids) { count(ids, -1); }
  // All that was dealt has been drawn. A program may draw more than that.
  bool is_done() const { return all_dealt_ && samples_ <= 0 && empty_batches_ <= 0; }

 private:
  void count(const std::vector<std::int64_t>& ids, int sign) {
    samples_ += sign * static_cast<std::int64_t>(ids.size());
    empty_batches_ += ids.empty() ? sign : 0;
  }

  std::int64_t samples_ = 0, empty_batches_ = 0;  // dealt, and not yet drawn
  bool all_dealt_ = false;
};

}  // namespace lockstep
