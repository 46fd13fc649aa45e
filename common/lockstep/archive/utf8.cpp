#include <lockstep/archive/utf8.h>

#include <cstdint>

namespace lockstep::archive {
namespace {

// The length of the character that starts with this byte, 0 where none does (RFC 3629, table 3-7 of
// the Unicode standard for the second byte's range).
int length(std::uint8_t first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first < 0xe0) return 2;
  if (first >= 0xe0 && first < 0xf0) return 3;
  if (first >= 0xf0 && first < 0xf5) return 4;
  return 0;
}

bool is_second(std::uint8_t first, std::uint8_t second) {
  if (first == 0xe0) return second >= 0xa0 && second < 0xc0;
  if (first == 0xed) return second >= 0x80 && second < 0xa0;  // no surrogates
  if (first == 0xf0) return second >= 0x90 && second < 0xc0;
  if (first == 0xf4) return second >= 0x80 && second < 0x90;
  return second >= 0x80 && second < 0xc0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  for (std::size_t i = 0; i < text.size();) {
    const auto size = static_cast<std::size_t>(length(byte(i)));
    if (size == 0 || size > text.size() - i) return false;
    if (size > 1 && !is_second(byte(i), byte(i + 1))) return false;
    for (std::size_t k = 2; k < size; ++k)
      if ((byte(i + k) & 0xc0) != 0x80) return false;
    i += size;
  }
  return true;
}

std::string printable(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string shown;
  for (const char c : text.substr(0, 80)) {
    const auto byte = static_cast<std::uint8_t>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      shown += c;
    } else {
      shown += "\\x";
      shown += kDigits[byte >> 4];
      shown += kDigits[byte & 15];
    }
  }
  return text.size() > 80 ? shown + "..." : shown;
}

}  // namespace lockstep::archive
