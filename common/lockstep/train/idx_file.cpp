#include <lockstep/base/error.h>
#include <lockstep/train/idx_file.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

namespace lockstep {
namespace {

// Deflate packs at most 1032 bytes into one, so a header that promises more is wrong; checked
// before any memory is asked for.
constexpr std::int64_t kLargestRatio = 1032;
constexpr std::uint32_t kUnsignedBytes = 0x08;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

// One gzip member, unpacked forwards. zlib's gzread would do, but it takes unpacked files as they
// are and ignores what follows the member.
class GzipStream {
 public:
  explicit GzipStream(const std::filesystem::path& path)
      : path_(path), file_(std::fopen(path.c_str(), "rb")) {
    if (!file_) throw Error(path.string() + ": cannot be opened: " + std::strerror(errno) + ".");
    // 16: gzip's header and checksum are required.
    if (inflateInit2(&state_, 16 + MAX_WBITS) != Z_OK)
      throw Error(path.string() + ": zlib could not be started: no memory.");
  }
  ~GzipStream() { inflateEnd(&state_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  std::int64_t offset() const { return static_cast<std::int64_t>(state_.total_out); }

  // Fills `to`, or throws; `what` says what is being read.
  void read(std::uint8_t* to, std::int64_t size, const std::string& what) {
    const std::int64_t begin = offset();
    while (offset() < begin + size) {
      const std::int64_t missing = begin + size - offset();
      state_.next_out = to + (offset() - begin);
      state_.avail_out = static_cast<uInt>(std::min<std::int64_t>(missing, 1 << 30));
      if (!unpack())
        fail("expected " + std::to_string(size) + " bytes (" + what + ") from offset " +
             std::to_string(begin) + ", found the end of the data after " +
             std::to_string(offset() - begin));
    }
  }

  // Throws unless the data, and the file, end here with the right checksum.
  void expect_end() {
    std::uint8_t extra = 0;
    state_.next_out = &extra;
    state_.avail_out = 1;
    const std::int64_t end = offset();
    while (unpack())
      if (offset() > end) fail("expected the end of the data, found more bytes", end);
    if (state_.avail_in > 0 || std::fgetc(file_.get()) != EOF)
      fail("expected the end of the file after the gzip data, found more bytes");
  }

  [[noreturn]] void fail(const std::string& problem, std::int64_t at = -1) const {
    throw Error(path_.string() + ": at offset " + std::to_string(at < 0 ? offset() : at) +
                " of the unpacked data: " + problem + ". The file is damaged; install it again.");
  }

 private:
  // Unpacks some; false at the end of the gzip data.
  bool unpack() {
    if (ended_) return false;
    if (state_.avail_in == 0) {
      state_.next_in = packed_.data();
      state_.avail_in =
          static_cast<uInt>(std::fread(packed_.data(), 1, packed_.size(), file_.get()));
      if (std::ferror(file_.get()))
        throw Error(path_.string() + ": cannot be read: " + std::strerror(errno) + ".");
      if (state_.avail_in == 0) fail("expected more gzip data, found the end of the file");
    }
    const int result = inflate(&state_, Z_NO_FLUSH);
    ended_ = result == Z_STREAM_END;
    // Z_BUF_ERROR: no progress without more input, which the next call reads.
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
      fail(std::string("expected sound gzip data, found: ") +
           (state_.msg ? state_.msg : zError(result)));
    return true;
  }

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, CloseFile> file_;
  z_stream state_{};
  std::array<std::uint8_t, 64 * 1024> packed_{};
  bool ended_ = false;
};

std::uint32_t read_big_endian(GzipStream& stream, const std::string& what) {
  std::array<std::uint8_t, 4> bytes{};
  stream.read(bytes.data(), bytes.size(), what);
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | std::uint32_t{bytes[3]};
}

std::string hexadecimal(std::uint32_t value) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "0x%08x", value);
  return text.data();
}

// The header: returns the number of items.
std::int64_t read_header(GzipStream& stream, const std::vector<std::int64_t>& item_shape) {
  const auto magic = static_cast<std::uint32_t>(kUnsignedBytes << 8 | (1 + item_shape.size()));
  if (const auto found = read_big_endian(stream, "the magic number"); found != magic)
    stream.fail("expected the magic number " + hexadecimal(magic) + " (unsigned bytes, " +
                    std::to_string(1 + item_shape.size()) + " dimensions), found " +
                    hexadecimal(found),
                0);
  const std::int64_t count = read_big_endian(stream, "the number of items");
  for (const auto expected : item_shape) {
    const std::int64_t at = stream.offset();
    if (const std::int64_t found = read_big_endian(stream, "a dimension"); found != expected)
      stream.fail(
          "expected the dimension " + std::to_string(expected) + ", found " + std::to_string(found),
          at);
  }
  return count;
}

}  // namespace

IdxData read_idx(const std::filesystem::path& path, const std::vector<std::int64_t>& item_shape,
                 std::int64_t limit) {
  GzipStream stream(path);
  IdxData data;
  data.count = read_header(stream, item_shape);
  data.header_bytes = stream.offset();
  data.items = limit <= 0 ? data.count : std::min(limit, data.count);

  std::int64_t item_bytes = 1;
  for (const auto dimension : item_shape) item_bytes *= dimension;
  const auto packed = static_cast<std::int64_t>(std::filesystem::file_size(path));
  if (data.count * item_bytes > packed * kLargestRatio)
    stream.fail("expected a number of items that a file of " + std::to_string(packed) +
                    " bytes can hold, found " + std::to_string(data.count),
                4);

  data.values.resize(static_cast<std::size_t>(data.items * item_bytes));
  stream.read(data.values.data(), data.items * item_bytes, std::to_string(data.items) + " items");
  if (data.items == data.count) stream.expect_end();
  return data;
}

}  // namespace lockstep
