#include <lockstep/launch/rendezvous_file.h>

#include <cstdint>
#include <fstream>

namespace lockstep::launch {

// Texts, one after another, each behind its size; keys and values in turn.
bool is_torn(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return false;
  const auto end = static_cast<std::uint64_t>(in.tellg());
  std::uint64_t at = 0, texts = 0;
  while (at < end) {
    std::uint32_t size = 0;
    if (end - at < sizeof size) return true;
    in.seekg(static_cast<std::streamoff>(at));
    if (!in.read(reinterpret_cast<char*>(&size), sizeof size)) return true;
    at += sizeof size + std::uint64_t{size};
    ++texts;
  }
  return at > end || texts % 2 != 0;
}

}  // namespace lockstep::launch
