#include <fcntl.h>
#include <libdeflate.h>
#include <lockstep/archive/utf8.h>
#include <lockstep/archive/zip_format.h>
#include <lockstep/archive/zip_reader.h>
#include <lockstep/base/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lockstep::archive {
namespace {

using namespace zip;

constexpr std::size_t kLongestComment = 0xffff;

void check_range(std::uint64_t offset, std::size_t size, std::uint64_t there) {
  if (offset > there || size > there - offset)
    throw Error("expected " + std::to_string(size) + " bytes at offset " + std::to_string(offset) +
                ", found the end at " + std::to_string(there));
}

[[noreturn]] void damaged(const std::string& what, std::uint64_t offset) {
  throw Error("at offset " + std::to_string(offset) + ": " + what);
}

// The 64-bit fields that stand in for those which hold kIn64, in the order of the format.
class Extra64 {
 public:
  Extra64(std::string_view extra, std::uint64_t offset) : offset_(offset) {
    while (extra.size() >= 4) {
      const auto size = number(extra, 2, 2);
      if (size > extra.size() - 4) damaged("an extra field that ends outside the header", offset);
      if (number(extra, 0, 2) == kExtra64) fields_ = extra.substr(4, size);
      extra.remove_prefix(4 + size);
    }
  }
  void replace(std::uint64_t& value) {
    if (value != kIn64) return;
    if (fields_.size() < 8) damaged("a 64-bit field is announced and missing", offset_);
    value = number(fields_, 0, 8);
    fields_.remove_prefix(8);
  }

 private:
  std::string_view fields_;
  std::uint64_t offset_;
};

}  // namespace

FileSource::FileSource(const std::filesystem::path& path) {
  // Not blocking: opening a pipe would wait for its writer.
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) throw Error(std::string("cannot be opened: ") + std::strerror(errno));
  struct stat status {};
  const bool known = fstat(fd_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    const std::string reason = known ? "is not a regular file" : std::strerror(errno);
    close(fd_);
    throw Error(reason);
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

FileSource::~FileSource() {
  close(fd_);
}

void FileSource::read(std::uint64_t offset, void* to, std::size_t size) const {
  check_range(offset, size, size_);
  auto* next = static_cast<char*>(to);
  while (size > 0) {
    const auto count = pread(fd_, next, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw Error(std::string("cannot be read: ") + std::strerror(errno));
    if (count == 0)
      throw Error("was cut to " + std::to_string(offset) + " bytes while it was read");
    next += count;
    offset += static_cast<std::uint64_t>(count);
    size -= static_cast<std::size_t>(count);
  }
}

void TextSource::read(std::uint64_t offset, void* to, std::size_t size) const {
  check_range(offset, size, text_.size());
  if (size > 0) std::memcpy(to, text_.data() + offset, size);
}

ZipReader::ZipReader(const ByteSource& source) : source_(source) {
  const auto directory = find_directory();
  read_entries(directory);
  for (auto& record : records_) locate(record, directory.offset);
  std::sort(records_.begin(), records_.end(),
            [](const Record& a, const Record& b) { return a.header < b.header; });
  check_overlaps();
  for (std::size_t i = 0; i < records_.size(); ++i)
    if (!by_name_.emplace(records_[i].name, i).second)
      damaged("a second record named \"" + printable(records_[i].name) + "\"", records_[i].header);
}

const ZipReader::Record* ZipReader::find(const std::string& name) const {
  const auto place = by_name_.find(name);
  return place == by_name_.end() ? nullptr : &records_[place->second];
}

void ZipReader::read(const Record& record, void* to) const {
  auto* next = static_cast<char*>(to);
  auto sum = libdeflate_crc32(0, nullptr, 0);
  for (std::uint64_t done = 0; done < record.size;) {
    const auto piece = std::min<std::uint64_t>(kPiece, record.size - done);
    source_.read(record.data + done, next, piece);
    sum = libdeflate_crc32(sum, next, piece);
    next += piece;
    done += piece;
  }
  if (sum != record.crc)
    damaged("the record \"" + printable(record.name) +
                "\" does not have its checksum: its bytes "
                "have changed since they were written",
            record.data);
}

// The end record is the last thing in the file, but for a comment.
ZipReader::Directory ZipReader::find_directory() const {
  const auto size = source_.size();
  const auto tail_size = std::min<std::uint64_t>(size, kEndSize + kLongestComment);
  const auto tail_offset = size - tail_size;
  const auto tail = bytes(tail_offset, tail_size);
  std::size_t at = tail.size();
  for (std::size_t i = tail.size(); i-- > 0 && at == tail.size();)
    if (tail.size() - i >= kEndSize && number(tail, i, 4) == kEnd &&
        number(tail, i + 20, 2) == tail.size() - i - kEndSize)
      at = i;
  if (at == tail.size())
    throw Error("is no zip archive, or was cut: its " + std::to_string(size) +
                " bytes have no end record");
  const std::uint64_t end = tail_offset + at;
  Directory directory{number(tail, at + 10, 2), number(tail, at + 12, 4), number(tail, at + 16, 4)};
  std::uint64_t limit = end;
  if (directory.count == kIn64Short || directory.size == kIn64 || directory.offset == kIn64) {
    if (end < kEnd64LocatorSize) damaged("expected a 64-bit end record's locator before it", end);
    const auto locator = bytes(end - kEnd64LocatorSize, kEnd64LocatorSize);
    const auto end64 = number(locator, 8, 8);
    if (number(locator, 0, 4) != kEnd64Locator || end64 > end || end - end64 < kEnd64Size)
      damaged("expected a 64-bit end record's locator", end - kEnd64LocatorSize);
    const auto record = bytes(end64, kEnd64Size);
    if (number(record, 0, 4) != kEnd64) damaged("expected a 64-bit end record", end64);
    directory = {number(record, 32, 8), number(record, 40, 8), number(record, 48, 8)};
    limit = end64;
  }
  if (directory.offset > limit || directory.size > limit - directory.offset)
    damaged("the directory of " + std::to_string(directory.size) + " bytes at " +
                std::to_string(directory.offset) + " reaches beyond it",
            end);
  if (directory.count > directory.size / kCentralHeaderSize)
    damaged("a directory of " + std::to_string(directory.size) + " bytes cannot hold " +
                std::to_string(directory.count) + " records",
            end);
  return directory;
}

void ZipReader::read_entries(const Directory& directory) {
  const auto text = bytes(directory.offset, directory.size);
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < directory.count; ++i) {
    const auto offset = directory.offset + at;
    if (text.size() - at < kCentralHeaderSize || number(text, at, 4) != kCentralHeader)
      damaged("expected entry " + std::to_string(i + 1) + " of the directory's " +
                  std::to_string(directory.count),
              offset);
    const auto field = [&](std::size_t where, std::size_t size) {
      return number(text, at + where, size);
    };
    const auto name_size = field(28, 2), extra_size = field(30, 2), comment_size = field(32, 2);
    if (name_size + extra_size + comment_size > text.size() - at - kCentralHeaderSize)
      damaged("an entry that ends outside the directory", offset);
    Record record;
    record.name = text.substr(at + kCentralHeaderSize, name_size);
    if (field(8, 2) & kEncrypted)
      damaged("\"" + printable(record.name) + "\" is encrypted", offset);
    if (field(10, 2) != 0)
      damaged("\"" + printable(record.name) +
                  "\" is compressed, which torch.save never does; is it a TorchScript program?",
              offset);
    record.crc = static_cast<std::uint32_t>(field(16, 4));
    std::uint64_t packed = field(20, 4);
    record.size = field(24, 4);
    record.header = field(42, 4);
    Extra64 extra(std::string_view(text).substr(at + kCentralHeaderSize + name_size, extra_size),
                  offset);
    extra.replace(record.size);
    extra.replace(packed);
    extra.replace(record.header);
    if (packed != record.size)
      damaged("\"" + printable(record.name) + "\" is stored, yet of two sizes", offset);
    records_.push_back(std::move(record));
    at += kCentralHeaderSize + name_size + extra_size + comment_size;
  }
}

// Finds the record's bytes, behind its local header. `end`: where the directory begins.
void ZipReader::locate(Record& record, std::uint64_t end) const {
  const auto outside = [&] {
    damaged("the record \"" + printable(record.name) + "\" of " + std::to_string(record.size) +
                " bytes reaches beyond " + std::to_string(end) + ", where the directory begins",
            record.header);
  };
  if (record.header > end || end - record.header < kLocalHeaderSize + record.name.size()) outside();
  const auto header = bytes(record.header, kLocalHeaderSize + record.name.size());
  if (number(header, 0, 4) != kLocalHeader || number(header, 26, 2) != record.name.size() ||
      std::string_view(header).substr(kLocalHeaderSize) != record.name)
    damaged("expected the record \"" + printable(record.name) + "\", as the directory says",
            record.header);
  record.data = record.header + header.size() + number(header, 28, 2);
  if (record.data > end || record.size > end - record.data) outside();
}

// Two records in one place could unpack to more than the file holds.
void ZipReader::check_overlaps() const {
  for (std::size_t i = 1; i < records_.size(); ++i)
    if (records_[i].header < records_[i - 1].data + records_[i - 1].size)
      damaged("the records \"" + printable(records_[i - 1].name) + "\" and \"" +
                  printable(records_[i].name) + "\" overlap",
              records_[i].header);
}

std::string ZipReader::bytes(std::uint64_t offset, std::uint64_t size) const {
  std::string text(size, '\0');
  source_.read(offset, text.data(), text.size());
  return text;
}

}  // namespace lockstep::archive
