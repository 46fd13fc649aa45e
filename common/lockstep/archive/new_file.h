// A file that is written beside its place and put there when it is complete, so that whoever reads
// the place finds the older file or the newer one, whole, whenever the writer or the machine dies.
#pragma once

#include <lockstep/archive/system.h>

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace lockstep::archive {

struct NewFileOptions {
  // Wait until the disk has the bytes, and the folder the name. Without it a killed process still
  // leaves the older file or the newer one, but a power cut may leave an empty one.
  bool sync = true;
  // Where the path is a symbolic link, write what it points to, as open() does, not in its place.
  bool follow_link = true;
  System* system = nullptr;  // null: the real one
};

class NewFile {
 public:
  // Makes missing folders and the temporary .<name>.lockstep-saving, and locks it (flock). One that
  // a killed writer left is taken over. Throws Error when another process, or another NewFile, is
  // writing to the same path and has not finished within a tenth of a second.
  //
  // Here and below: Error names path(), the call that failed and its reason, and the older file is
  // untouched unless the text says otherwise.
  explicit NewFile(std::filesystem::path path, const NewFileOptions& options = {});
  // Without commit: removes the temporary.
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Absolute, and of the file itself where the constructor was given a link to it.
  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  void append(std::string_view bytes);
  void patch(std::uint64_t offset, std::string_view bytes);  // over bytes already there

  // fsync, rename, fsync of the folder. Call it once, last.
  void commit();

 private:
  void open_temporary();
  void lock_temporary();
  bool take_over();
  void write_at(std::uint64_t offset, std::string_view bytes);

  std::filesystem::path path_, temporary_;
  bool sync_;
  System& system_;
  int fd_ = -1;
  bool renamed_ = false;
  std::uint64_t size_ = 0;
};

// Removes the temporaries in `folder` whose writers are dead; says how many. One that is being
// written stays. Where a file system knows no locks, nobody can tell, and all stay.
int remove_leftovers(const std::filesystem::path& folder, System& system = real_system());

// Waits until the disk has the names in `folder`. `what` begins the message of the Error.
void sync_folder(const std::filesystem::path& folder, System& system, const std::string& what);

// Takes the lock of an open file without waiting.
enum class Lock { kTaken, kBusy, kUnknown };  // kUnknown: this file system has no locks
Lock try_lock(int fd, System& system);

}  // namespace lockstep::archive
