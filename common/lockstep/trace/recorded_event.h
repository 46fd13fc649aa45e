// An event as a trace in memory holds it. Events that say the same share what they say: of a healthy job's ranks, most
// do.
#pragma once

#include <lockstep/trace/event.h>

#include <atomic>
#include <cstdint>
#include <utility>
#include <variant>

namespace lockstep::trace {

// A counted reference to a value of one of Payload's types, or none. It may be read, and shared, by several threads.
class SharedPayload {
  struct Base {
    virtual ~Base() = default;
    std::atomic<std::uint32_t> owners{1};
  };
  template <class T>
  struct Held : Base {
    explicit Held(T of) : value(std::move(of)) {}
    T value;
  };

 public:
  SharedPayload() = default;
  template <class T>
  requires requires { T::kName; }
  SharedPayload(T value) : held_(new Held<T>(std::move(value))), kind_(kind_of<T>()) {}
  SharedPayload(const Payload& payload)
      : SharedPayload(std::visit([](const auto& value) { return SharedPayload(value); }, payload)) {
  }

  SharedPayload(const SharedPayload& other) noexcept : held_(other.held_), kind_(other.kind_) {
    if (held_) held_->owners.fetch_add(1, std::memory_order_relaxed);
  }
  SharedPayload(SharedPayload&& other) noexcept
      : held_(std::exchange(other.held_, nullptr)), kind_(other.kind_) {}
  SharedPayload& operator=(SharedPayload other) noexcept {
    std::swap(held_, other.held_);
    std::swap(kind_, other.kind_);
    return *this;
  }
  ~SharedPayload() {
    if (held_ && held_->owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete held_;
  }

  explicit operator bool() const { return held_ != nullptr; }
  std::size_t index() const { return kind_; }  // in Payload; there must be one

  // The value, if it is of this type.
  template <class T>
  const T* as() const {
    return held_ && index() == kind_of<T>() ? &static_cast<const Held<T>*>(held_)->value : nullptr;
  }
  // The same to be changed, for this owner alone.
  template <class T>
  T* change() {
    const T* value = as<T>();
    if (value == nullptr) return nullptr;
    if (held_->owners.load(std::memory_order_acquire) > 1) *this = SharedPayload(*value);
    return &static_cast<Held<T>*>(held_)->value;
  }
  // `what`(value), whatever its type; there must be one.
  template <class F>
  decltype(auto) visit(F&& what) const {
    return visit_from<0>(std::forward<F>(what));
  }

 private:
  template <std::size_t I, class F>
  decltype(auto) visit_from(F&& what) const {
    if constexpr (I + 1 < std::variant_size_v<Payload>)
      if (kind_ != I) return visit_from<I + 1>(std::forward<F>(what));
    return what(static_cast<const Held<std::variant_alternative_t<I, Payload>>*>(held_)->value);
  }

  Base* held_ = nullptr;
  std::uint32_t kind_ = 0;  // here and not in what is held: most are asked for this alone
};

inline constexpr std::int32_t kMostSteps = 1 << 30;

struct Event {
  std::int64_t time_ns = 0;  // monotonic_ns() when it was recorded
  [[no_unique_address]] SharedPayload payload;
  std::int32_t step = -1;    // updates done so far by this rank; -1 = before training
  std::int64_t left_ns = 0;  // of a Collective: when its work was done; 0 = still inside

  Event() = default;
  // At most kMostSteps.
  Event(std::int64_t at_ns, std::int64_t at_step, SharedPayload what, std::int64_t done_ns = 0)
      : time_ns(at_ns),
        payload(std::move(what)),
        step(static_cast<std::int32_t>(at_step)),
        left_ns(done_ns) {}

  template <class T>
  const T* as() const {
    return payload.as<T>();
  }
  template <class T>
  bool is() const {
    return as<T>() != nullptr;
  }
  template <class T>
  T* change() {
    return payload.change<T>();
  }
};

static_assert(sizeof(Event) == 32);  // a job of 10,000 ranks has millions

}  // namespace lockstep::trace
