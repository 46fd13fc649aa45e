// What a test may not leave behind: a process, a listening socket, a segment of shared memory, a
// temporary file. tests/support/main.cpp asks after every test of every program;
// nothing_left.py is the same for tests in Python.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::test {

// A TCP socket of this network namespace that listens.
struct Listening {
  std::string address;  // as ip writes it
  int port = 0;
  std::string inode;
};
std::vector<Listening> listening_sockets();
// The inodes of the sockets that a process has open; none where it has gone.
std::set<std::string> sockets_of(const std::string& pid);

// Every process whose environment holds NAME=VALUE, and what it is; this one is left out.
std::map<pid_t, std::string> processes_with(const std::string& name, const std::string& value);

// Gives this program, and whatever it starts, a /dev/shm of its own: what lies there after a test is
// the test's, and what other programs of this machine keep in theirs is out of reach. Call it first in
// main, while there is one thread.
void own_shared_memory();
// Whether that was possible: it takes root, or user namespaces. Where not, shared memory is not
// looked for, since whose a segment is cannot be told.
bool has_own_shared_memory();

// Gives each test a TMPDIR of its own, and a mark in the environment that whatever it starts
// inherits. After the test it looks for both; what is left fails the test, and is removed.
class NothingLeft : public ::testing::EmptyTestEventListener {
 public:
  void OnTestStart(const ::testing::TestInfo&) override;
  void OnTestEnd(const ::testing::TestInfo&) override;

 private:
  std::optional<std::string> usual_folder_;
  std::filesystem::path folder_;
  std::set<std::string> segments_;
  std::set<std::string> sockets_;
  std::set<pid_t> children_;
};

}  // namespace lockstep::test
