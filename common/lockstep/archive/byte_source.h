// Bytes that can be read at any place: a file's, or a text's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep::archive {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const = 0;
  // Fills `to` from `offset` on. Throws Error where the bytes are not there or cannot be read.
  virtual void read(std::uint64_t offset, void* to, std::size_t size) const = 0;
};

class FileSource : public ByteSource {
 public:
  explicit FileSource(const std::filesystem::path& path);  // throws Error; a regular file only
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  std::uint64_t size() const override { return size_; }
  void read(std::uint64_t offset, void* to, std::size_t size) const override;

 private:
  int fd_ = -1;
  std::uint64_t size_ = 0;  // when it was opened
};

// Of a text that outlives it.
class TextSource : public ByteSource {
 public:
  explicit TextSource(std::string_view text) : text_(text) {}
  std::uint64_t size() const override { return text_.size(); }
  void read(std::uint64_t offset, void* to, std::size_t size) const override;

 private:
  std::string_view text_;
};

}  // namespace lockstep::archive
