#include <lockstep/base/hash.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep {

std::uint64_t hash_bytes(const void* data, std::size_t size, std::uint64_t seed) {
  return XXH3_64bits_withSeed(data, size, seed);
}

std::uint64_t hash_text(std::string_view text, std::uint64_t seed) {
  return hash_bytes(text.data(), text.size(), seed);
}

}  // namespace lockstep
