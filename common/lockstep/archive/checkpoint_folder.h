// A folder of numbered checkpoints, the newest of which a file named `latest` points at.
#pragma once

#include <lockstep/archive/new_file.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

namespace lockstep::archive {

struct CheckpointFolderOptions {
  int keep = 3;  // checkpoints, the newest; 0: all, those of abandoned runs too
  bool sync = true;
  System* system = nullptr;
};

// One process saves to a folder; any number may read it meanwhile. Nothing here is collective.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path folder,
                            const CheckpointFolderOptions& options = {});
  ~CheckpointFolder();  // gives up the folder's lock
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  // Writes checkpoint_<number>.pt, which `fill` fills, then points `latest` at it, then removes what
  // killed saves left and all but the newest `keep`. Whenever the process dies in between, latest()
  // is a whole checkpoint. The first save locks the folder for this object's life; it throws Error
  // at once where another job has done so. `number` counts steps or epochs, from 0.
  //
  // The checkpoint just saved is the newest, whatever its number: those of higher numbers are of a
  // run that was given up by going on from an older one, and go in the same removal. A job that
  // wants to keep them goes on in another folder, or keeps all.
  std::filesystem::path save(std::int64_t number, const std::function<void(NewFile&)>& fill);

  // The checkpoint that `latest` points at, or the one of the highest number where it is missing;
  // nothing in an empty folder. Throws Error where `latest` points at what is not there.
  std::optional<std::filesystem::path> latest() const;

  // All whole checkpoints, by number.
  std::vector<std::filesystem::path> all() const;

 private:
  void lock();
  NewFileOptions own_file() const;
  void point_at(const std::filesystem::path& checkpoint);
  void remove_all_but_newest(const std::filesystem::path& newest);

  std::filesystem::path folder_;
  CheckpointFolderOptions options_;
  System& system_;
  int lock_fd_ = -1;
};

}  // namespace lockstep::archive
