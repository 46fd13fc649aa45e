// Keeps other processes out while it lives.
#pragma once

#include <filesystem>

namespace lockstep::course {

class FileLock {
 public:
  // Makes the file, and missing folders, where there is none, and follows no link; waits for whoever holds it. Throws
  // Error.
  explicit FileLock(const std::filesystem::path& file);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace lockstep::course
