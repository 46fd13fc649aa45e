// Files that are whole or absent.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep {

// The whole file as text. Throws Error with the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

// Writes to a temporary file beside `path`, syncs it and renames it: a reader sees the old content
// or the new, never a part. Creates missing parent folders. Throws Error; leaves no temporary file
// behind.
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
