// The ZIP format as torch uses it: every record stored as it is, none compressed. Numbers are
// little-endian. Source: PKWARE's APPNOTE.TXT 6.3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::archive::zip {

// Bytes that are read or written at a time, and summed while they are in the cache.
inline constexpr std::size_t kPiece = std::size_t{1} << 20;

inline constexpr std::uint32_t kLocalHeader = 0x04034b50;
inline constexpr std::uint32_t kCentralHeader = 0x02014b50;
inline constexpr std::uint32_t kEnd = 0x06054b50;
inline constexpr std::uint32_t kEnd64 = 0x06064b50;
inline constexpr std::uint32_t kEnd64Locator = 0x07064b50;

inline constexpr std::size_t kLocalHeaderSize = 30;
inline constexpr std::size_t kCentralHeaderSize = 46;
inline constexpr std::size_t kEndSize = 22;
inline constexpr std::size_t kEnd64Size = 56;
inline constexpr std::size_t kEnd64LocatorSize = 20;

// "Look into the 64-bit fields instead."
inline constexpr std::uint32_t kIn64 = 0xffffffff;
inline constexpr std::uint16_t kIn64Short = 0xffff;
inline constexpr std::uint16_t kExtra64 = 1;       // the extra field with them
inline constexpr std::uint16_t kPadding = 0x4246;  // "FB": torch's, aligns what follows
inline constexpr std::size_t kAlignment = 64;      // of a record's bytes in the file

inline constexpr std::uint16_t kVersion = 45;  // of the format: the first with 64-bit fields
inline constexpr std::uint16_t kUtf8Names = 0x0800;
inline constexpr std::uint16_t kEncrypted = 0x0001;
inline constexpr std::uint16_t kDate = 0x0021;  // 1980-01-01: equal contents, equal files

// Appends numbers to a text.
class Fields {
 public:
  Fields& u16(std::uint64_t value) { return put(value, 2); }
  Fields& u32(std::uint64_t value) { return put(value, 4); }
  Fields& u64(std::uint64_t value) { return put(value, 8); }
  Fields& text(std::string_view value) {
    bytes_ += value;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  Fields& put(std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes_ += static_cast<char>(value >> (8 * i));
    return *this;
  }
  std::string bytes_;
};

// The number at an offset of bytes that are there.
inline std::uint64_t number(std::string_view bytes, std::size_t offset, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i)
    value |= std::uint64_t{static_cast<std::uint8_t>(bytes[offset + i])} << (8 * i);
  return value;
}

}  // namespace lockstep::archive::zip
