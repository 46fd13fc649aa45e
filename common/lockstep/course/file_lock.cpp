#include <fcntl.h>
#include <lockstep/base/error.h>
#include <lockstep/course/file_lock.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace lockstep::course {

FileLock::FileLock(const std::filesystem::path& file) {
  std::error_code failed;
  std::filesystem::create_directories(file.parent_path(), failed);
  fd_ = open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  int locked = -1;
  while (fd_ >= 0 && (locked = flock(fd_, LOCK_EX)) != 0 && errno == EINTR) {
  }
  if (locked == 0) return;
  const std::string reason = std::strerror(errno);
  if (fd_ >= 0) close(fd_);
  throw Error("cannot lock " + file.string() + ": " + reason);
}

FileLock::~FileLock() {
  close(fd_);
}

}  // namespace lockstep::course
