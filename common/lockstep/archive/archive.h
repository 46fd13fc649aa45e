// A file of torch.save, format 3: a zip archive with a pickle that describes values and tensors, and
// one record for the bytes of each storage. Source: torch/serialization.py of 2.11.
#pragma once

#include <lockstep/archive/pickle.h>
#include <lockstep/archive/zip_reader.h>
#include <lockstep/archive/zip_writer.h>

#include <string>
#include <string_view>

namespace lockstep::archive {

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
