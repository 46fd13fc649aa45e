// Sample ids in a row. Copies share them, and so may two events that hold the same: an id is 8 bytes, and a long
// trace is mostly ids. Part of event.h.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::trace {

class Ids {
 public:
  Ids() : Ids(std::vector<std::int64_t>{}) {}
  Ids(std::vector<std::int64_t> ids)
      : held_(std::make_shared<const std::vector<std::int64_t>>(std::move(ids))) {}
  Ids(std::initializer_list<std::int64_t> ids) : Ids(std::vector<std::int64_t>(ids)) {}
  Ids(const Ids&) = default;  // and no move, which would leave one without a list
  Ids& operator=(const Ids&) = default;

  const std::vector<std::int64_t>& list() const { return *held_; }
  std::size_t size() const { return held_->size(); }
  bool empty() const { return held_->empty(); }
  const std::int64_t* begin() const { return held_->data(); }
  const std::int64_t* end() const { return begin() + size(); }
  std::int64_t operator[](std::size_t i) const { return (*held_)[i]; }
  bool operator==(const Ids& other) const { return *held_ == *other.held_; }

 private:
  std::shared_ptr<const std::vector<std::int64_t>> held_;
};

}  // namespace lockstep::trace
