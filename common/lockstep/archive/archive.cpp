#include <libdeflate.h>
#include <lockstep/archive/archive.h>
#include <lockstep/archive/utf8.h>
#include <lockstep/archive/zip_format.h>
#include <lockstep/base/error.h>

#include <algorithm>

namespace lockstep::archive {
namespace {

using namespace zip;

constexpr std::string_view kFolder = "archive/";
constexpr std::uint64_t kLargestPickle = std::uint64_t{1} << 30;  // 8 million tensors
constexpr std::uint64_t kLargestText = 64;
constexpr std::size_t kCrcInLocalHeader = 14;

std::uint64_t capped(std::uint64_t value) {
  return std::min<std::uint64_t>(value, kIn64);
}

std::string data_name(const std::string& key) {
  return "data/" + key;
}

// What torch.save wrote before version 1.6, and TorchScript, are other formats; say so.
ZipReader open_zip(const ByteSource& source) {
  std::string start(std::min<std::uint64_t>(source.size(), 16), '\0');
  source.read(0, start.data(), start.size());
  if (start.starts_with("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8"))
    throw Error(
        "is of torch's format before version 1.6. In Python: torch.save(torch.load(path), path).");
  if (start.starts_with("\x80")) throw Error("is a bare pickle, not a file of torch.save");
  return ZipReader(source);
}

}  // namespace

void ZipWriter::add(const std::string& name, std::string_view bytes) {
  Record record{name, bytes.size(), file_.size(), 0};
  Fields extra;
  if (record.size >= kIn64) extra.u16(kExtra64).u16(16).u64(record.size).u64(record.size);
  const auto unpadded = record.header + kLocalHeaderSize + name.size() + extra.bytes().size() + 4;
  const auto padding = (kAlignment - unpadded % kAlignment) % kAlignment;
  extra.u16(kPadding).u16(padding).text(std::string(padding, 'Z'));
  Fields header;
  header.u32(kLocalHeader).u16(kVersion).u16(kUtf8Names).u16(0).u16(0).u16(kDate).u32(0);
  header.u32(capped(record.size)).u32(capped(record.size));
  header.u16(name.size()).u16(extra.bytes().size()).text(name).text(extra.bytes());
  file_.append(header.bytes());

  auto sum = libdeflate_crc32(0, nullptr, 0);
  while (!bytes.empty()) {
    const auto piece = bytes.substr(0, kPiece);
    sum = libdeflate_crc32(sum, piece.data(), piece.size());
    file_.append(piece);
    bytes.remove_prefix(piece.size());
  }
  record.crc = sum;
  // Known only now. The other way, a descriptor behind the bytes, older readers take for a record.
  file_.patch(record.header + kCrcInLocalHeader, Fields().u32(record.crc).bytes());
  records_.push_back(std::move(record));
}

void ZipWriter::finish() {
  const auto begin = file_.size();
  Fields directory;
  for (const auto& record : records_) {
    Fields extra;
    if (record.size >= kIn64) extra.u64(record.size).u64(record.size);
    if (record.header >= kIn64) extra.u64(record.header);
    const auto extra_size = extra.bytes().size();
    directory.u32(kCentralHeader).u16(kVersion).u16(kVersion).u16(kUtf8Names).u16(0);
    directory.u16(0).u16(kDate).u32(record.crc).u32(capped(record.size)).u32(capped(record.size));
    directory.u16(record.name.size()).u16(extra_size == 0 ? 0 : extra_size + 4).u16(0).u16(0);
    directory.u16(0).u32(0).u32(capped(record.header)).text(record.name);
    if (extra_size > 0) directory.u16(kExtra64).u16(extra_size).text(extra.bytes());
  }
  const auto size = directory.bytes().size(), count = records_.size();
  if (count >= kIn64Short || begin >= kIn64 || size >= kIn64) {
    directory.u32(kEnd64).u64(kEnd64Size - 12).u16(kVersion).u16(kVersion).u32(0).u32(0);
    directory.u64(count).u64(count).u64(size).u64(begin);
    directory.u32(kEnd64Locator).u32(0).u64(begin + size).u32(1);
  }
  const auto short_count = std::min<std::uint64_t>(count, kIn64Short);
  directory.u32(kEnd).u16(0).u16(0).u16(short_count).u16(short_count);
  directory.u32(capped(size)).u32(capped(begin)).u16(0);
  file_.append(directory.bytes());
}

ArchiveWriter::ArchiveWriter(NewFile& file) : zip_(file) {}

void ArchiveWriter::value(const FileValue& value) {
  const auto add = [&](const char* name, std::string_view bytes) {
    zip_.add(std::string(kFolder) + name, bytes);
  };
  add("data.pkl", pickle(value));
  add(".format_version", "1");
  add(".storage_alignment", "64");
  add("byteorder", "little");
}

void ArchiveWriter::storage(const std::string& key, std::string_view bytes) {
  zip_.add(std::string(kFolder) + data_name(key), bytes);
}

void ArchiveWriter::finish() {
  zip_.add(std::string(kFolder) + "version", "3\n");
  zip_.finish();
}

ArchiveReader::ArchiveReader(const ByteSource& source) : zip_(open_zip(source)) {
  find_folder();
  check_layout();
  const auto& pickled = record("data.pkl");
  if (pickled.size > kLargestPickle)
    throw Error("describes its values in " + std::to_string(pickled.size) + " bytes; " +
                std::to_string(kLargestPickle) + " at most");
  std::string bytes(pickled.size, '\0');
  zip_.read(pickled, bytes.data());
  value_ = unpickle(bytes);
  check_storages(value_);
}

void ArchiveReader::read(const Storage& storage, void* to) const {
  zip_.read(record(data_name(storage.key)), to);
}

// All records lie in one folder, whose name is the writer's choice.
void ArchiveReader::find_folder() {
  if (zip_.records().empty()) throw Error("holds no records");
  const auto& first = zip_.records().front().name;
  prefix_ = first.substr(0, first.find('/') + 1);
}

void ArchiveReader::check_layout() const {
  if (zip_.find(prefix_ + "constants.pkl"))
    throw Error("is a TorchScript program, not a checkpoint");
  if (zip_.find(prefix_ + "data.pkl") == nullptr)
    throw Error("is a zip archive without the record data.pkl, so no file of torch.save");
  if (zip_.find(prefix_ + "byteorder") && text("byteorder") != "little")
    throw Error("was written on a machine of the other byte order (" +
                printable(text("byteorder")) + ")");
}

void ArchiveReader::check_storages(const FileValue& value) const {
  if (value.is_list() || value.is_tuple())
    for (const auto& item : value.as_list()) check_storages(item);
  if (value.is_dict())
    for (const auto& [key, item] : value.as_dict()) check_storages(item);
  if (!value.is_tensor()) return;
  const auto& storage = value.as_tensor().storage;
  const auto there = record(data_name(storage.key)).size;
  if (there != static_cast<std::uint64_t>(storage.bytes))
    throw Error("storage \"" + printable(storage.key) + "\" should hold " +
                std::to_string(storage.bytes) + " bytes, and its record holds " +
                std::to_string(there));
}

const ZipReader::Record& ArchiveReader::record(const std::string& name) const {
  if (const auto* found = zip_.find(prefix_ + name)) return *found;
  throw Error("lacks the record \"" + printable(prefix_ + name) + "\"");
}

std::string ArchiveReader::text(const std::string& name) const {
  const auto& found = record(name);
  if (found.size > kLargestText)
    throw Error("the record \"" + name + "\" holds " + std::to_string(found.size) + " bytes; " +
                std::to_string(kLargestText) + " at most");
  std::string bytes(found.size, '\0');
  zip_.read(found, bytes.data());
  return bytes;
}

}  // namespace lockstep::archive
