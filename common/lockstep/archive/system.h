// The system calls that saving makes, behind one seam: a test replaces them to make each one fail, or
// the process die in it.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

namespace lockstep::archive {

// Each method is the system call of its name: -1 and errno where it fails.
class System {
 public:
  virtual ~System() = default;
  virtual int open(const char* path, int flags, mode_t mode);
  virtual int flock(int fd, int operation);
  virtual int fstat(int fd, struct stat* status);
  virtual int stat(const char* path, struct stat* status);
  virtual int ftruncate(int fd, off_t size);
  virtual ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset);
  virtual int fsync(int fd);
  virtual int rename(const char* from, const char* to);
  virtual int unlink(const char* path);
  virtual int close(int fd);
};

System& real_system();

}  // namespace lockstep::archive
