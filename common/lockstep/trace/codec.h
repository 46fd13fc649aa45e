// Fields to bytes and back, through each event's visit(). Numbers take 8 bytes, little endian;
// strings and lists a 32-bit count, then their elements; enumerators are written by name.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/trace/ids.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace lockstep::trace {

class Encoder {
 public:
  explicit Encoder(std::vector<std::uint8_t>& out) : out_(out) {}

  template <class T>
  void operator()(const char*, T& value) {
    put(value);
  }

 private:
  void bytes(const void* data, std::size_t size) {
    const auto* begin = static_cast<const std::uint8_t*>(data);
    out_.insert(out_.end(), begin, begin + size);
  }
  void count(std::size_t n) {
    const auto narrow = static_cast<std::uint32_t>(n);
    bytes(&narrow, sizeof narrow);
  }
  template <class T>
  requires std::is_arithmetic_v<T>
  void put(T value) {
    using Wide = std::conditional_t<std::is_same_v<T, bool>, std::int64_t, T>;
    static_assert(sizeof(Wide) == 8);
    const Wide wide = value;
    bytes(&wide, sizeof wide);
  }
  template <class T>
  requires std::is_enum_v<T>
  void put(T value) {
    std::string name = to_string(value);
    put(name);
  }
  void put(std::string& text) {
    count(text.size());
    bytes(text.data(), text.size());
  }
  template <class T>
  void put(std::vector<T>& list) {
    count(list.size());
    if constexpr (std::is_arithmetic_v<T>) {
      static_assert(sizeof(T) == 8);
      bytes(list.data(), list.size() * sizeof(T));  // one by one, sample ids take twice as long
    } else {
      for (auto& item : list) put(item);
    }
  }
  void put(Ids& ids) {
    count(ids.size());
    bytes(ids.begin(), ids.size() * sizeof(std::int64_t));
  }
  template <class T>
  requires std::is_class_v<T>
  void put(T& nested) { nested.visit(*this); }

  std::vector<std::uint8_t>& out_;
};

// Reads from `begin` up to `end` and never past it; throws Error where a count promises more than
// is there.
class Decoder {
 public:
  // `last`: the ids that were read last, if any; the next ones share them if they are the same.
  Decoder(const std::uint8_t* begin, const std::uint8_t* end, Ids& last)
      : next_(begin), end_(end), last_(last) {}

  template <class T>
  void operator()(const char*, T& value) {
    get(value);
  }
  std::size_t remaining() const { return static_cast<std::size_t>(end_ - next_); }

 private:
  void bytes(void* data, std::size_t size) {
    if (remaining() < size)
      throw Error("a field of " + std::to_string(size) + " bytes with " +
                  std::to_string(remaining()) + " left");
    if (size == 0) return;  // an empty list has no memory, and memcpy wants some
    std::memcpy(data, next_, size);
    next_ += size;
  }
  // Every element takes at least `least` bytes, so a count that lies is refused before anything is
  // allocated for it.
  std::size_t count(std::size_t least) {
    std::uint32_t n = 0;
    bytes(&n, sizeof n);
    if (n > remaining() / least)
      throw Error("a list of " + std::to_string(n) + " elements with " +
                  std::to_string(remaining()) + " bytes left");
    return n;
  }
  template <class T>
  requires std::is_arithmetic_v<T>
  void get(T& value) {
    std::conditional_t<std::is_same_v<T, bool>, std::int64_t, T> wide{};
    bytes(&wide, sizeof wide);
    value = static_cast<T>(wide);
  }
  template <class T>
  requires std::is_enum_v<T>
  void get(T& value) {
    std::string name;
    get(name);
    if (!from_string(name, value)) throw Error("a word that this field has not");
  }
  void get(std::string& text) {
    text.resize(count(1));
    bytes(text.data(), text.size());
  }
  template <class T>
  void get(std::vector<T>& list) {
    list.resize(count(std::is_arithmetic_v<T> ? 8 : 4));
    if constexpr (std::is_arithmetic_v<T>) {
      static_assert(sizeof(T) == 8);
      bytes(list.data(), list.size() * sizeof(T));
    } else {
      for (auto& item : list) get(item);
    }
  }
  void get(Ids& ids) {
    const auto* begin = next_;
    const auto size = count(8) * 8;
    if (size == last_.size() * 8 && (size == 0 || std::memcmp(next_, last_.begin(), size) == 0)) {
      next_ += size;
    } else {
      next_ = begin;
      std::vector<std::int64_t> list;
      get(list);
      last_ = std::move(list);
    }
    ids = last_;
  }
  template <class T>
  requires std::is_class_v<T>
  void get(T& nested) { nested.visit(*this); }

  const std::uint8_t* next_;
  const std::uint8_t* end_;
  Ids& last_;
};

}  // namespace lockstep::trace
