// What the part "shared memory" needs of the system: a container's /dev/shm, and files in it.
#pragma once

#include <lockstep/lesson/lesson.h>

#include <cstdint>
#include <filesystem>

// From here on the ranks of this job have a /dev/shm of their own, of so many bytes, as the
// processes of a container have (Docker: 64 MB). It is gone when the last of them is, and nothing
// else on the machine sees it. Call this before any thread is started. Throws UnavailableError
// where this process may not make one, or the ranks are not all on one machine.
void enter_small_shared_memory(const lockstep::RankContext& context, std::int64_t bytes);

// A file that several ranks map into their memory.
class SharedFile {
 public:
  // Makes the file and reserves its bytes, and tells the detectors. Where there is no room it
  // throws Error, once the other ranks have come to a barrier: the one in here, or the one that
  // must follow this.
  static SharedFile make(lockstep::RankContext& context, const std::filesystem::path& file,
                         std::int64_t bytes);
  // Opens one that another rank has made for this rank alone, and removes its name. The memory
  // stays until both have let go of it.
  static SharedFile open(const std::filesystem::path& file);
  ~SharedFile();
  SharedFile(SharedFile&& other) noexcept;
  SharedFile(const SharedFile&) = delete;

  void* data() const { return data_; }

 private:
  SharedFile(int fd, std::int64_t bytes, const std::filesystem::path& file);

  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};
