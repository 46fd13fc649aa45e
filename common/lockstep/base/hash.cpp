#include <lockstep/base/hash.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>

namespace lockstep {

std::uint64_t hash_bytes(const void* data, std::size_t size, std::uint64_t seed) {
  return XXH3_64bits_withSeed(data, size, seed);
}

std::uint64_t hash_text(std::string_view text, std::uint64_t seed) {
  return hash_bytes(text.data(), text.size(), seed);
}

struct Hasher::State {
  XXH3_state_t of;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->of);
}
Hasher::~Hasher() = default;

void Hasher::add(const void* data, std::size_t size) {
  XXH3_64bits_update(&state_->of, data, size);
}

std::uint64_t Hasher::hash() const {
  return XXH3_64bits_digest(&state_->of);
}

std::string hexadecimal(std::uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace lockstep
