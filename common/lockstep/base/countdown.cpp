#include <lockstep/base/clock.h>
#include <lockstep/base/countdown.h>
#include <lockstep/base/environment.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <utility>

namespace lockstep {
namespace {

// One line of a terminal, so that rewriting it leaves nothing behind.
constexpr std::size_t kColumns = 79;

std::string text_of(double seconds) {
  const bool minutes = seconds > 90;
  const auto count = std::max(1L, std::lround(std::ceil(minutes ? seconds / 60 : seconds)));
  return ", about " + std::to_string(count) + (minutes ? " min left" : " s left");
}

}  // namespace

Countdown::Place Countdown::standard_error() {
  const bool rewrites =
      isatty(STDERR_FILENO) == 1 && environment("TERM").value_or("dumb") != "dumb";
  return {&std::cerr, rewrites, monotonic_ns};
}

Countdown::Countdown(std::string unit, std::vector<Part> parts, Place place)
    : unit_(std::move(unit)), parts_(std::move(parts)), place_(std::move(place)) {}

std::optional<double> Countdown::seconds_left() const {
  const auto done = begun_ - 1;
  double left = 0;
  for (std::size_t i = done; i < parts_.size(); ++i) {
    if (!parts_[i].seconds && done == 0) return std::nullopt;
    left += parts_[i].seconds ? *parts_[i].seconds
                              : 1e-9 * static_cast<double>(place_.now_ns() - began_ns_) /
                                    static_cast<double>(done);
  }
  return left;
}

void Countdown::next() {
  if (place_.out == nullptr) return;
  if (begun_++ == 0) began_ns_ = place_.now_ns();
  const auto left = seconds_left();
  auto text = unit_ + " " + std::to_string(begun_) + " of " + std::to_string(parts_.size()) + ": " +
              parts_.at(begun_ - 1).name + (left ? text_of(*left) : "");
  clear();
  if (place_.rewrites)
    *place_.out << text.substr(0, kColumns);
  else
    *place_.out << text << "\n";
  *place_.out << std::flush;
  shown_ = place_.rewrites;
}

void Countdown::clear() {
  if (std::exchange(shown_, false)) *place_.out << "\r\033[K" << std::flush;
}

}  // namespace lockstep
