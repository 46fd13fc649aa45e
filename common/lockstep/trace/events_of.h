// The events of one kind in a participant's trace.
#pragma once

#include <lockstep/trace/recorded_event.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::trace {

// One of them, with its step and time.
template <class T>
struct At {
  std::int64_t step;
  std::int64_t time_ns;
  const T* event;
  std::int64_t left_ns;  // as Event has it
  std::size_t place;     // among all the trace's events
};

// A list of At<T>, each made when it is asked for. It points into the trace, and into its KindIndex if there is one;
// its iterators point into the list itself.
template <class T>
class EventsOf {
 public:
  class iterator {
   public:
    using iterator_category = std::random_access_iterator_tag;
    using value_type = At<T>;
    using difference_type = std::ptrdiff_t;
    using reference = At<T>;
    struct pointer {
      At<T> value;
      const At<T>* operator->() const { return &value; }
    };

    iterator() = default;
    iterator(const Event* events, const std::uint32_t* place) : events_(events), place_(place) {}
    At<T> operator*() const {
      const auto& event = events_[*place_];
      return {event.step, event.time_ns, event.as<T>(), event.left_ns, *place_};
    }
    pointer operator->() const { return {**this}; }
    At<T> operator[](difference_type n) const { return *(*this + n); }
    iterator& operator+=(difference_type n) {
      place_ += n;
      return *this;
    }
    iterator& operator-=(difference_type n) { return *this += -n; }
    iterator& operator++() { return *this += 1; }
    iterator& operator--() { return *this -= 1; }
    iterator operator++(int) { return std::exchange(*this, *this + 1); }
    iterator operator--(int) { return std::exchange(*this, *this - 1); }
    friend iterator operator+(iterator at, difference_type n) { return at += n; }
    friend iterator operator+(difference_type n, iterator at) { return at += n; }
    friend iterator operator-(iterator at, difference_type n) { return at -= n; }
    friend difference_type operator-(iterator one, iterator other) {
      return one.place_ - other.place_;
    }
    auto operator<=>(const iterator&) const = default;

   private:
    const Event* events_ = nullptr;
    const std::uint32_t* place_ = nullptr;
  };
  using const_iterator = iterator;
  using value_type = At<T>;

  EventsOf() = default;
  EventsOf(const Event* events, std::span<const std::uint32_t> places)
      : events_(events), indexed_(places) {}
  EventsOf(const Event* events, std::vector<std::uint32_t> places)
      : events_(events), found_(std::move(places)) {}

  iterator begin() const { return {events_, places().data()}; }
  iterator end() const { return begin() + static_cast<std::ptrdiff_t>(size()); }
  auto rbegin() const { return std::reverse_iterator(end()); }
  auto rend() const { return std::reverse_iterator(begin()); }
  std::size_t size() const { return places().size(); }
  bool empty() const { return size() == 0; }
  At<T> operator[](std::size_t i) const { return begin()[static_cast<std::ptrdiff_t>(i)]; }
  At<T> at(std::size_t i) const {
    if (i >= size())
      throw std::out_of_range("only " + std::to_string(size()) + " events are of this kind");
    return (*this)[i];
  }
  At<T> front() const { return *begin(); }
  At<T> back() const { return *(end() - 1); }
  template <class Wanted>
  EventsOf where(Wanted wanted) const {
    std::vector<std::uint32_t> found;
    for (const auto place : places())
      if (wanted(*iterator(events_, &place))) found.push_back(place);
    return {events_, std::move(found)};
  }

 private:
  std::span<const std::uint32_t> places() const {
    return found_.empty() ? indexed_ : std::span<const std::uint32_t>(found_);
  }

  const Event* events_ = nullptr;
  std::span<const std::uint32_t> indexed_;
  std::vector<std::uint32_t> found_;  // where there is no index
};

}  // namespace lockstep::trace
