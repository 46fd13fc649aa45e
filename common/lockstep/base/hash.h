// Content hashes: XXH3, 64 bits. Equal bytes give equal hashes on every machine of the same
// endianness.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// Hash of `size` bytes at `data`; `seed` chains hashes of several pieces.
std::uint64_t hash_bytes(const void* data, std::size_t size, std::uint64_t seed = 0);
std::uint64_t hash_text(std::string_view text, std::uint64_t seed = 0);
std::string hexadecimal(std::uint64_t hash);  // 16 lower-case digits

}  // namespace lockstep
