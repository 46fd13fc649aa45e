// Texts by number: a job's dumps say the same few things a million times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

namespace lockstep::flight {

using NameId = std::uint32_t;
inline constexpr NameId kNoName = 0;  // of the empty text

class Names {
 public:
  Names() { id(""); }
  Names(const Names&) = delete;
  Names& operator=(const Names&) = delete;

  // The text's number, the same for equal texts. Threads may call it at one time.
  NameId id(std::string_view text);
  // Not while another thread calls id().
  const std::string& text(NameId id) const { return texts_[id]; }

 private:
  struct Known {
    std::size_t hash;
    NameId id;
  };
  struct Wanted {
    std::size_t hash;
    std::string_view text;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(const Known& known) const { return known.hash; }
    std::size_t operator()(const Wanted& wanted) const { return wanted.hash; }
  };
  struct Equal {
    using is_transparent = void;
    const std::deque<std::string>* texts;
    bool operator()(const Known& a, const Known& b) const { return a.id == b.id; }
    bool operator()(const Wanted& a, const Known& b) const { return a.text == (*texts)[b.id]; }
    bool operator()(const Known& a, const Wanted& b) const { return (*this)(b, a); }
  };

  std::mutex mutex_;
  std::deque<std::string> texts_;
  std::unordered_set<Known, Hash, Equal> ids_{64, Hash{}, Equal{&texts_}};
};

}  // namespace lockstep::flight
