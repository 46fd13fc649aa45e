// Systems that fail, die and forget, for the tests of what saving promises.
#pragma once

#include <fcntl.h>
#include <lockstep/archive/system.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace lockstep::archive {

// Does not wait for the disk, which no test needs.
class QuickSystem : public System {
 public:
  int fsync(int) override { return 0; }
};

inline System& quick_system() {
  static QuickSystem system;
  return system;
}

// Counts the calls and does something else in one of them.
class WatchedSystem : public QuickSystem {
 public:
  int open(const char* path, int flags, mode_t mode) override {
    return before("open") ? -1 : after(System::open(path, flags, mode));
  }
  int flock(int fd, int operation) override {
    return before("flock") ? -1 : after(System::flock(fd, operation));
  }
  int fstat(int fd, struct stat* status) override {
    return before("stat") ? -1 : after(System::fstat(fd, status));
  }
  int stat(const char* path, struct stat* status) override {
    return before("stat") ? -1 : after(System::stat(path, status));
  }
  int ftruncate(int fd, off_t size) override {
    return before("ftruncate") ? -1 : after(System::ftruncate(fd, size));
  }
  ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) override {
    return before("write") ? -1 : after(System::pwrite(fd, bytes, size, offset));
  }
  int fsync(int fd) override { return before("fsync") ? -1 : after(QuickSystem::fsync(fd)); }
  int rename(const char* from, const char* to) override {
    return before("rename") ? -1 : after(System::rename(from, to));
  }
  int unlink(const char* path) override {
    return before("unlink") ? -1 : after(System::unlink(path));
  }
  int close(int fd) override {
    const bool fails = before("close");
    const int result = after(System::close(fd));  // as Linux does: closed, whatever it says
    return fails ? -1 : result;
  }

  std::vector<std::string> calls;  // in order

 protected:
  // Of call number calls.size() - 1. True: it fails, with errno set, and is not made.
  virtual bool before(const std::string&) { return false; }
  virtual void done() {}

 private:
  bool before(const char* name) {
    calls.emplace_back(name);
    return before(calls.back());
  }
  template <class Result>
  Result after(Result result) {
    const int error = errno;
    done();
    errno = error;
    return result;
  }
};

class FailingSystem : public WatchedSystem {
 public:
  // Call number `at` fails; with `on` all from there on do, as on a full disk.
  FailingSystem(std::size_t at, int error, bool on = false) : at_(at), error_(error), on_(on) {}

 protected:
  bool before(const std::string&) override {
    const bool fails = calls.size() == at_ + 1 || (on_ && calls.size() > at_);
    if (fails) errno = error_;
    return fails;
  }

 private:
  std::size_t at_;
  int error_;
  bool on_;
};

// Kills the process before call number `at`, or right after it.
class DyingSystem : public WatchedSystem {
 public:
  DyingSystem(std::size_t at, bool after) : at_(at), after_(after) {}

 protected:
  bool before(const std::string&) override {
    if (!after_ && calls.size() == at_ + 1) die();
    return false;
  }
  void done() override {
    if (after_ && calls.size() == at_ + 1) die();
  }

 private:
  static void die() { ::kill(::getpid(), SIGKILL); }
  std::size_t at_;
  bool after_;
};

// Whether save(system), in a process of its own, was killed in call number `at`, or after it.
template <class Save>
bool dies_in_call(std::size_t at, bool after, const Save& save) {
  const pid_t child = ::fork();
  if (child == 0) {
    DyingSystem system(at, after);
    save(system);
    ::_exit(0);  // not reached
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFSIGNALED(status);
}

// Nothing gets through from call number `at` on, and the disk keeps only what was synced: after lose(), a file written and not synced since is
// empty, and a name changed in a folder that was not synced since may be the old one.
class ForgetfulSystem : public WatchedSystem {
 public:
  explicit ForgetfulSystem(std::size_t at) : at_(at) {}

  ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) override {
    const auto count = WatchedSystem::pwrite(fd, bytes, size, offset);
    struct stat status {};
    if (count > 0 && ::fstat(fd, &status) == 0) unsynced_.insert(status.st_ino);
    return count;
  }
  int fsync(int fd) override {
    struct stat status {};
    const int result = WatchedSystem::fsync(fd);
    if (result != 0 || ::fstat(fd, &status) != 0) return result;
    if (S_ISDIR(status.st_mode)) {
      renames_.clear();
    } else {
      unsynced_.erase(status.st_ino);
    }
    return result;
  }
  int rename(const char* from, const char* to) override {
    Rename change{from, to, std::string(to) + ".older" + std::to_string(calls.size())};
    if (::link(to, change.older.c_str()) != 0) change.older.clear();
    const int result = WatchedSystem::rename(from, to);
    if (result == 0) renames_.push_back(change);
    return result;
  }

  bool cut() const { return calls.size() > at_; }
  void lose(const std::filesystem::path& folder, bool names_too) {
    if (names_too)
      for (auto change = renames_.rbegin(); change != renames_.rend(); ++change) {
        ::rename(change->to.c_str(), change->from.c_str());
        if (!change->older.empty()) ::rename(change->older.c_str(), change->to.c_str());
      }
    std::vector<std::filesystem::path> extra;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      struct stat status {};
      if (::stat(entry.path().c_str(), &status) == 0 && unsynced_.count(status.st_ino) > 0)
        std::filesystem::resize_file(entry.path(), 0);
      if (entry.path().string().find(".older") != std::string::npos) extra.push_back(entry.path());
    }
    for (const auto& path : extra) std::filesystem::remove(path);
  }

 protected:
  bool before(const std::string&) override {
    errno = EIO;
    return cut();
  }

 private:
  struct Rename {
    std::string from, to, older;
  };
  std::size_t at_;
  std::set<ino_t> unsynced_;
  std::vector<Rename> renames_;  // since the folder was synced
};

}  // namespace lockstep::archive
