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
constexpr std::size_t kLineLength = 79;

std::string text_of(double seconds) {
  const bool minutes = seconds > 90;
  const auto count = std::max(1L, std::lround(std::ceil(minutes ? seconds / 60 : seconds)));
  return ", about " + std::to_string(count) + (minutes ? " min left" : " s left");
}

}  // namespace

Countdown::Output Countdown::standard_error() {
  const bool rewrites =
      isatty(STDERR_FILENO) == 1 && environment("TERM").value_or("dumb") != "dumb";
  return {&std::cerr, rewrites, monotonic_ns};
}

Countdown::Countdown(std::string unit, std::vector<Item> items, Output output)
    : unit_(std::move(unit)), items_(std::move(items)), output_(std::move(output)) {}

std::optional<double> Countdown::seconds_left() const {
  const auto done = begun_ - 1;
  double left = 0;
  for (std::size_t i = done; i < items_.size(); ++i) {
    if (!items_[i].seconds && done == 0) return std::nullopt;
    left += items_[i].seconds ? *items_[i].seconds
                              : 1e-9 * static_cast<double>(output_.now_ns() - began_ns_) /
                                    static_cast<double>(done);
  }
  return left;
}

void Countdown::next() {
  if (output_.out == nullptr) return;
  if (begun_++ == 0) began_ns_ = output_.now_ns();
  const auto left = seconds_left();
  auto text = unit_ + " " + std::to_string(begun_) + " of " + std::to_string(items_.size()) + ": " +
              items_.at(begun_ - 1).name + (left ? text_of(*left) : "");
  clear();
  if (output_.rewrites)
    *output_.out << text.substr(0, kLineLength);
  else
    *output_.out << text << "\n";
  *output_.out << std::flush;
  shown_ = output_.rewrites;
}

void Countdown::clear() {
  if (std::exchange(shown_, false)) *output_.out << "\r\033[K" << std::flush;
}

}  // namespace lockstep
