// What the library throws, and what it means.
#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace lockstep {

// Wrong use, bad input or an unusable environment. The text says what was wrong, where, and what to
// do; programs print it as it is and exit with 2 (usage) or 3 (could not run).
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller asked for something that makes no sense (exit code 2 at a command line).
class UsageError : public Error {
 public:
  using Error::Error;
};

// The request makes sense, but this machine lacks what it needs, such as a GPU (exit code 77 where
// the program was asked to skip, 3 otherwise).
class UnavailableError : public Error {
 public:
  using Error::Error;
};

// A collective failed on this rank: a peer is gone, late, or did something else. It is rarely the
// root cause; the launcher ranks it behind a signal or a rank's own exception. An empty operation, a
// sequence of 0 or a timeout of 0: not known.
class CollectiveError : public Error {
 public:
  CollectiveError(int rank, const std::string& operation, std::int64_t sequence,
                  std::chrono::milliseconds timeout, const std::string& cause);

  int rank;
  std::string operation;
  std::int64_t sequence;  // counted from 1 in each process group
  std::chrono::milliseconds timeout;
};

}  // namespace lockstep
