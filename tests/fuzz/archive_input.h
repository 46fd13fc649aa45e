// What the fuzzer and the replay of its corpus do with one input.
#pragma once

#include <lockstep/archive/archive.h>
#include <lockstep/base/error.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace lockstep::archive {

inline void read_storages(const ArchiveReader& reader, const FileValue& value) {
  if (value.is_list() || value.is_tuple())
    for (const auto& item : value.as_list()) read_storages(reader, item);
  if (value.is_dict())
    for (const auto& [key, item] : value.as_dict()) read_storages(reader, item);
  if (!value.is_tensor()) return;
  std::string bytes(static_cast<std::size_t>(value.as_tensor().storage.bytes), '\0');
  reader.read(value.as_tensor().storage, bytes.data());
}

// A file where it begins like one, a bare pickle otherwise, so that no checksum stands in the way.
// True where it was accepted. What was accepted can be written and read again, to the same bytes;
// aborts where it cannot.
inline bool try_input(std::string_view input) {
  FileValue value;
  try {
    if (input.starts_with("PK")) {
      const TextSource source(input);
      const ArchiveReader reader(source);
      read_storages(reader, reader.value());
      value = reader.value();
    } else {
      value = unpickle(input);
    }
  } catch (const Error&) {
    return false;
  }
  std::string once;
  try {
    once = pickle(value);
  } catch (const Error&) {  // text that is not UTF-8
    return true;
  }
  if (pickle(unpickle(once)) != once) std::abort();
  return true;
}

}  // namespace lockstep::archive
