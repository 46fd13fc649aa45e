// Where the ranks of a pretended communicator meet: a file that all have mapped.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

namespace pretended {

class Meeting {
 public:
  // Makes the file, empty; its name is to be the communicator's identifier.
  static std::string make();
  Meeting(const std::string& name, int rank, int size);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // What follows waits for all ranks, for ever. False when this rank has given up.
  // `place` is the rank's GPU and host.
  bool join(const std::string& place);
  bool has_same_place_twice() const;
  bool connect();
  // The sum over the ranks of their collective `number`, which is 1, 2, ... one after another. Takes `from` at once.
  bool sum(long number, const float* from, float* to, std::size_t count);

  void give_up() { given_up_ = true; }
  void wait_until_given_up() const;

 private:
  struct Member;
  Member& member(int rank) const;
  Member& own() const { return member(rank_); }
  template <class Predicate>
  bool wait_for_all(Predicate predicate) const;

  void* memory_ = nullptr;
  int rank_, size_;
  std::atomic<bool> given_up_{false};
};

}  // namespace pretended
