// Files that are whole or absent, and those of somebody else.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep {

inline constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;  // of a file that is read whole

// An open file, for reading; closed when the object goes. It is a regular file: throws Error with the path and the
// reason for a fifo, a device or a folder, as where the system refuses. Never waits for a writer.
class InputFile {
 public:
  enum class Links {
    follow,
    refuse
  };  // `refuse`: what somebody else may have put there, such as a trace
  explicit InputFile(const std::filesystem::path& path, Links links = Links::refuse);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::uint64_t size() const;  // now: the file may grow
  // Up to `size` bytes from `offset`; fewer where the file ends. Throws Error.
  std::string read(std::uint64_t offset, std::uint64_t size) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// The whole file as text. Throws Error as InputFile does, and for more than `most` bytes.
std::string read_file(const std::filesystem::path& path,
                      InputFile::Links links = InputFile::Links::follow,
                      std::uint64_t most = kMostBytes);

// Opens a file to add to, and makes it where there is none, for its owner alone; closed on exec. -1 where it cannot, and
// for what is no regular file of this user's own, which nobody else has a name for: a link, a fifo, a folder.
// lockstep_torch/places.py goes by the same rules.
int open_own(const std::filesystem::path& file);

// The same descriptor under a number that no other file of the process is likely to get, closed on exec. A library keeps
// its files there: the program's own have the numbers that they would have without it. Where there is none, `fd` itself.
int out_of_the_way(int fd);

// Writes to a temporary file beside `path`, syncs it and renames it: a reader sees the old content
// or the new, never a part. Creates missing parent folders. Throws Error; leaves no temporary file
// behind. What is there and is no regular file, a link too, is not replaced: it throws.
void write_file(const std::filesystem::path& path, std::string_view text);

// A new folder under the system's temporary folder (TMPDIR honoured), named prefix-XXXXXX, mode
// 0700.
std::filesystem::path make_private_folder(const std::string& prefix);

// A private folder that is removed with everything in it when the object goes.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& prefix) : path_(make_private_folder(prefix)) {}
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep
