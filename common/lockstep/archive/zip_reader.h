// Reads a ZIP archive of stored records, whoever wrote it. Nothing in the file is believed before it
// is checked against the file's size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::archive {

// Bytes that can be read at any place: a file's, or a text's.
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

class ZipReader {
 public:
  struct Record {
    std::string name;
    std::uint64_t size = 0;
    std::uint32_t crc = 0;
    std::uint64_t header = 0;  // offset of the local header
    std::uint64_t data = 0;    // offset of the bytes
  };

  // Reads the directory. Throws Error, saying where, unless every record is stored (not compressed,
  // not encrypted), lies inside the file, overlaps no other and has a name of its own. `source`
  // outlives the reader.
  explicit ZipReader(const ByteSource& source);

  const std::vector<Record>& records() const { return records_; }  // in the file's order
  const Record* find(const std::string& name) const;               // null where there is none

  // Reads record.size bytes to `to`. Throws Error when they do not have the record's checksum.
  void read(const Record& record, void* to) const;

 private:
  struct Directory {
    std::uint64_t count, size, offset;
  };
  Directory find_directory() const;
  void read_entries(const Directory& directory);
  void locate(Record& record, std::uint64_t end) const;
  void check_overlaps() const;
  std::string bytes(std::uint64_t offset, std::uint64_t size) const;

  const ByteSource& source_;
  std::vector<Record> records_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

}  // namespace lockstep::archive
