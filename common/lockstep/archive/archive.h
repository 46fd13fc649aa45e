// A file of torch.save, format 3: a zip archive with a pickle that describes values and tensors, and
// one record for the bytes of each storage. Source: torch/serialization.py of 2.11.
#pragma once

#include <lockstep/archive/new_file.h>
#include <lockstep/archive/pickle.h>
#include <lockstep/archive/zip_reader.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::archive {

// Writes a ZIP archive of stored records straight into a file, each aligned as torch's are, so that
// a reader may map them.
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

// Writes in this order: value(), storage() for each storage that the value names, finish(). The
// bytes go straight to the file, so a model is never in memory twice.
class ArchiveWriter {
 public:
  explicit ArchiveWriter(NewFile& file);  // the file is empty; its owner commits it
  void value(const FileValue& value);
  void storage(const std::string& key, std::string_view bytes);
  void finish();

 private:
  ZipWriter zip_;
};

// Opening reads and checks everything but the storages' bytes, whose records it finds and compares
// in size. Throws Error; an unknown layout says what it looks like.
class ArchiveReader {
 public:
  explicit ArchiveReader(const ByteSource& source);  // which outlives it
  const FileValue& value() const { return value_; }
  // Fills storage.bytes bytes. Throws Error when they are not those that were written.
  void read(const Storage& storage, void* to) const;

 private:
  const ZipReader::Record& record(const std::string& name) const;
  std::string text(const std::string& name) const;
  void find_folder();
  void check_layout() const;
  void check_storages(const FileValue& value) const;

  ZipReader zip_;
  std::string prefix_;  // "archive/"
  FileValue value_;
};

}  // namespace lockstep::archive
