#include <libdeflate.h>
#include <lockstep/archive/zip_format.h>
#include <lockstep/archive/zip_writer.h>

#include <algorithm>

namespace lockstep::archive {
namespace {

using namespace zip;

constexpr std::size_t kCrcInLocalHeader = 14;

std::uint64_t capped(std::uint64_t value) {
  return std::min<std::uint64_t>(value, kIn64);
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

}  // namespace lockstep::archive
