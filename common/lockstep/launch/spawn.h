// One child process: fork, then at once exec; or without exec, to go on with the libraries that are loaded.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace lockstep::launch {

// An owned file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Command {
  std::string program;                             // a path
  std::vector<std::string> arguments;              // the first one is the program's name
  std::map<std::string, std::string> environment;  // the whole of it
  std::filesystem::path out, err;                  // created or emptied, 0600
  // Where it is set, the child calls it in place of the program, and ends with what it returns.
  std::function<int()> go_on = {};
};

struct Process {
  pid_t pid = -1;    // also the id of its process group
  Descriptor pidfd;  // readable once it has ended
};

// Starts the command in a process group of its own, with stdin from /dev/null, no other descriptor,
// no blocked signal and default handlers; the kernel kills it when the calling thread ends. Returns
// once the new program runs, or the child is about to go on. Throws Error, with the system's reason, when it cannot; nothing is
// left then.
Process spawn(const Command& command);

// Whether a child may go on without exec: this process has one thread, so that nobody else holds a lock, and has no GPU
// open, which a child could not use.
bool can_go_on_in_a_child();

}  // namespace lockstep::launch
