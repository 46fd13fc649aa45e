// What long work is at, item by item, and about how long it will take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

class Countdown {
 public:
  struct Item {
    std::string name;
    std::optional<double> seconds = {};  // that it took when it was last measured
  };
  // Where it is shown: as one line that is rewritten, or as a line for each item. Nowhere: without `out`.
  struct Output {
    std::ostream* out = nullptr;
    bool rewrites = false;
    std::function<std::int64_t()> now_ns;
  };
  // Standard error, which is rewritten where it is a terminal that can (TERM).
  static Output standard_error();

  // `unit` is what an item is: a "variant".
  Countdown(std::string unit, std::vector<Item> items, Output output = standard_error());
  ~Countdown() { clear(); }
  Countdown(const Countdown&) = delete;
  Countdown& operator=(const Countdown&) = delete;

  // The next item begins: "variant 3 of 9: missing-set-epoch, about 12 s left". Not to be called more often than there
  // are items. An item that was never measured is taken for as long as those of this work were on average; there is no
  // estimate before any was.
  void next();
  // Takes the line away, before anything else is written to the terminal.
  void clear();

 private:
  std::optional<double> seconds_left() const;  // from the item that begins

  std::string unit_;
  std::vector<Item> items_;
  Output output_;
  std::int64_t began_ns_ = 0;
  std::size_t begun_ = 0;  // items
  bool shown_ = false;     // a line that is to be rewritten
};

}  // namespace lockstep
