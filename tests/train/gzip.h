// Gzipped IDX files made by hand, for the tests that damage them.
#pragma once

#include <zlib.h>

#include <initializer_list>
#include <stdexcept>
#include <string>

namespace lockstep {

inline std::string gzip(const std::string& data) {
  z_stream state{};
  if (deflateInit2(&state, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2");
  std::string packed(deflateBound(&state, data.size()) + 32, '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  state.avail_in = static_cast<uInt>(data.size());
  state.next_out = reinterpret_cast<Bytef*>(packed.data());
  state.avail_out = static_cast<uInt>(packed.size());
  if (deflate(&state, Z_FINISH) != Z_STREAM_END) throw std::runtime_error("deflate");
  packed.resize(state.total_out);
  deflateEnd(&state);
  return packed;
}

inline std::string big_endian(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

inline std::string header(std::initializer_list<std::uint32_t> words) {
  std::string text;
  for (const auto word : words) text += big_endian(word);
  return text;
}

}  // namespace lockstep
