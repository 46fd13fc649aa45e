#include <fcntl.h>
#include <lockstep/archive/system.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>

namespace lockstep::archive {

int System::open(const char* path, int flags, mode_t mode) {
  return ::open(path, flags, mode);
}
int System::flock(int fd, int operation) {
  return ::flock(fd, operation);
}
int System::fstat(int fd, struct stat* status) {
  return ::fstat(fd, status);
}
int System::stat(const char* path, struct stat* status) {
  return ::stat(path, status);
}
int System::ftruncate(int fd, off_t size) {
  return ::ftruncate(fd, size);
}
ssize_t System::pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  return ::pwrite(fd, bytes, size, offset);
}
int System::fsync(int fd) {
  return ::fsync(fd);
}
int System::rename(const char* from, const char* to) {
  return ::rename(from, to);
}
int System::unlink(const char* path) {
  return ::unlink(path);
}
int System::close(int fd) {
  return ::close(fd);
}

System& real_system() {
  static System system;
  return system;
}

}  // namespace lockstep::archive
