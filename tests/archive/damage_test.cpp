// Files damaged in every way that one byte or one cut can do it: an error or a value, never a crash,
// never memory that the file does not justify.
#include <gtest/gtest.h>
#include <lockstep/archive/zip_format.h>
#include <zlib.h>

#include "../support/little_memory.h"
#include "files.h"

namespace lockstep::archive {
namespace {

// Reads all of it; true where it was accepted.
bool survives(const std::string& bytes) {
  try {
    const TextSource source(bytes);
    const ArchiveReader reader(source);
    const auto read = [&](const auto& self, const FileValue& value) -> void {
      if (value.is_list() || value.is_tuple())
        for (const auto& item : value.as_list()) self(self, item);
      if (value.is_dict())
        for (const auto& [key, item] : value.as_dict()) self(self, item);
      if (!value.is_tensor()) return;
      std::string storage(static_cast<std::size_t>(value.as_tensor().storage.bytes), '\0');
      reader.read(value.as_tensor().storage, storage.data());
    };
    read(read, reader.value());
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(DamagedArchive, CutAnywhereIsRefused) {
  const auto good = every_kind_file();
  ASSERT_TRUE(survives(good));
  for (std::size_t size = 0; size < good.size(); ++size)
    ASSERT_FALSE(survives(good.substr(0, size))) << "cut to " << size << " bytes";
}

// What no checksum covers (padding, dates, versions) may change; no value may.
TEST(DamagedArchive, AnyChangedByteIsRefusedOrHarmless) {
  const auto good = every_kind_file();
  auto bytes = good;
  std::size_t accepted = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (const char flip : {'\x01', '\x10', '\x80', '\xff'}) {
      bytes[i] = static_cast<char>(good[i] ^ flip);
      if (!survives(bytes)) continue;
      ++accepted;
      const TextSource source(bytes);
      ASSERT_TRUE(ArchiveReader(source).value() == every_kind()) << "byte " << i;
    }
    bytes[i] = good[i];
  }
  EXPECT_GT(accepted, 0u);
  EXPECT_LT(accepted, 4 * good.size() / 2) << "too much goes unnoticed";
}

// The same inside the pickle, with a right checksum: what an attacker would do.
TEST(DamagedArchive, AnyChangedByteOfThePickleIsReadOrRefused) {
  const auto good = pickle(every_kind());
  auto bytes = good;
  std::size_t accepted = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int change = 0; change < 16; ++change) {
      bytes[i] =
          change < 8 ? static_cast<char>(good[i] ^ (1 << change)) : "\0\xff(.cRtQ"[change - 8];
      try {
        unpickle(bytes);
        ++accepted;
      } catch (const Error&) {
      }
    }
    bytes[i] = good[i];
  }
  EXPECT_GT(accepted, good.size() / 4) << "other numbers are numbers too";
}

// `file` with its pickle replaced by one of the same size, and the checksum to match.
std::string with_pickle(std::string file, const std::string& pickle) {
  const auto place = file.find("\x80\x02");
  const auto entry = file.find("PK\1\2");  // the directory's first
  file.replace(place, pickle.size(), pickle);
  const auto sum =
      crc32(0, reinterpret_cast<const Bytef*>(pickle.data()), static_cast<uInt>(pickle.size()));
  return file.replace(entry + 16, 4, zip::Fields().u32(sum).bytes());
}

// With little memory, no file of a few KB may need more: each of its 32-bit words once says "four
// billion".
TEST(DamagedArchive, LyingSizesAllocateNothing) {
  if (lockstep::test::kSanitized)
    GTEST_SKIP() << "a sanitizer reserves more address space than this test allows";
  const auto good = every_kind_file();
  const auto good_pickle = pickle(every_kind());
  ASSERT_TRUE(survives(with_pickle(good, good_pickle)));
  const lockstep::test::LittleMemory little(256);
  ASSERT_TRUE(little.is_set());
  const auto lie = [](std::string bytes, std::size_t at, std::uint32_t value) {
    for (std::size_t k = 0; k < 4; ++k) bytes[at + k] = static_cast<char>(value >> (8 * k));
    return bytes;
  };
  for (const std::uint32_t value : {0xffffffffu, 0x7fffffffu, 0x10000000u}) {
    // std::bad_alloc would be no Error.
    for (std::size_t i = 0; i + 4 <= good.size(); ++i)
      EXPECT_NO_THROW(survives(lie(good, i, value))) << "byte " << i;
    for (std::size_t i = 0; i + 4 <= good_pickle.size(); ++i)
      EXPECT_NO_THROW(survives(with_pickle(good, lie(good_pickle, i, value)))) << "byte " << i;
  }
}

}  // namespace
}  // namespace lockstep::archive
