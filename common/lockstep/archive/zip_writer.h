// Writes a ZIP archive of stored records straight into a file, each aligned as torch's are, so that
// a reader may map them.
#pragma once

#include <lockstep/archive/new_file.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::archive {

class ZipWriter {
 public:
  explicit ZipWriter(NewFile& file) : file_(file) {}  // `file` is empty and outlives the writer

  // A record of these bytes; they are not copied. Throws Error when they cannot be written.
  void add(const std::string& name, std::string_view bytes);
  // The directory. Call it last.
  void finish();

 private:
  struct Record {
    std::string name;
    std::uint64_t size;
    std::uint64_t header;
    std::uint32_t crc;
  };

  NewFile& file_;
  std::vector<Record> records_;
};

}  // namespace lockstep::archive
