// Seams of the part "shared memory": a container's /dev/shm, and what is told of the memory in it.
#pragma once

#include <lockstep/lesson/lesson.h>

#include <cstdint>
#include <filesystem>

// From here on the ranks of this job have a /dev/shm of their own, of so many bytes, as the processes of a
// container have (Docker: 64 MB). It is gone when the last of them is, and nothing else on the machine sees it. Call
// it before any thread is started. Throws UnavailableError where this process may not make one, or the ranks
// are not all on one machine.
void enter_small_shared_memory(const lockstep::RankContext& context, std::int64_t bytes);

// A file that several ranks map into their memory.
class SharedFile {
 public:
  // Makes it, reserves its bytes, and tells the probes so before. Throws Error where there is no room, once the other
  // ranks have come to the barrier that is to follow this, or to the one in here.
  static SharedFile make(lockstep::RankContext& context, const std::filesystem::path& file,
                         std::int64_t bytes);
  // Of one that another rank has made, for this rank alone: its name goes, the memory stays until both let go of it.
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
