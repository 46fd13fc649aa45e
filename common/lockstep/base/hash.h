// Content hashes: XXH3, 64 bits. Equal bytes give equal hashes on every machine of the same
// endianness.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep {

// Hash of `size` bytes at `data`; `seed` chains hashes of several pieces.
std::uint64_t hash_bytes(const void* data, std::size_t size, std::uint64_t seed = 0);
std::uint64_t hash_text(std::string_view text, std::uint64_t seed = 0);
std::string hexadecimal(std::uint64_t hash);  // 16 lower-case digits

// hash_bytes() of what is added, however it is cut into pieces.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void add(const void* data, std::size_t size);
  std::uint64_t hash() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
