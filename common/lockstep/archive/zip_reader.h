// Reads a ZIP archive of stored records, whoever wrote it. Nothing in the file is believed before it
// is checked against the file's size.
#pragma once

#include <lockstep/archive/byte_source.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace lockstep::archive {

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
