// The zip layer: what it writes, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/archive/zip_format.h>
#include <zlib.h>

#include "files.h"

namespace lockstep::archive {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Records = std::vector<std::pair<std::string, std::string>>;

std::string zip_of(const Records& records) {
  const TemporaryFolder folder("lockstep-zip");
  NewFile file(folder.path() / "x.zip", {.sync = false});
  ZipWriter zip(file);
  for (const auto& [name, bytes] : records) zip.add(name, bytes);
  zip.finish();
  file.commit();
  return read_file(folder.path() / "x.zip");
}

std::string contents(const ZipReader& reader, const std::string& name) {
  const auto* record = reader.find(name);
  if (record == nullptr) return "(none)";
  std::string bytes(record->size, '\0');
  reader.read(*record, bytes.data());
  return bytes;
}

std::string zip_refusal(const std::string& bytes) {
  return refusal([&] {
    const TextSource source(bytes);
    const ZipReader reader(source);
    for (const auto& record : reader.records()) contents(reader, record.name);
  });
}

// `bytes` with the little-endian number at `offset` replaced.
std::string with(std::string bytes, std::size_t offset, std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) bytes[offset + i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

TEST(Zip, RecordsComeBackAligned) {
  const Records records = {
      {"a", ""}, {"b/c", "x"}, {"big", std::string(3'000'000, 'y')}, {"z", "zz"}};
  const auto bytes = zip_of(records);
  const TextSource source(bytes);
  const ZipReader reader(source);
  ASSERT_EQ(reader.records().size(), 4u);
  for (const auto& [name, content] : records) {
    EXPECT_EQ(contents(reader, name), content);
    EXPECT_EQ(reader.find(name)->data % 64, 0u) << name;
  }
  EXPECT_EQ(reader.find("d"), nullptr);
  EXPECT_EQ(bytes, zip_of(records)) << "equal contents, equal files";
}

TEST(Zip, MoreRecordsThanTheOldFormatCounts) {
  Records records;
  for (int i = 0; i < 66'000; ++i) records.emplace_back(std::to_string(i), std::to_string(i));
  const auto bytes = zip_of(records);
  const TextSource source(bytes);
  const ZipReader reader(source);
  EXPECT_EQ(reader.records().size(), 66'000u);
  EXPECT_EQ(contents(reader, "65999"), "65999");
}

// A directory whose sizes and offsets stand in the 64-bit fields, as beyond 4 GiB.
TEST(Zip, SixtyFourBitFields) {
  using namespace zip;
  const std::string name = "a", content = "hello";
  Fields file;
  const auto sum = crc32(0, reinterpret_cast<const Bytef*>("hello"), 5);
  file.u32(kLocalHeader).u16(45).u16(0).u16(0).u16(0).u16(0).u32(sum).u32(kIn64).u32(kIn64);
  file.u16(1).u16(20).text(name).u16(kExtra64).u16(16).u64(5).u64(5).text(content);
  const auto directory = file.bytes().size();
  file.u32(kCentralHeader).u16(45).u16(45).u16(0).u16(0).u16(0).u16(0).u32(sum);
  file.u32(kIn64).u32(kIn64).u16(1).u16(28 + 5).u16(0).u16(0).u16(0).u32(0).u32(kIn64).text(name);
  file.u16(99).u16(1).text("?").u16(kExtra64).u16(24).u64(5).u64(5).u64(0);
  const auto end64 = file.bytes().size();
  file.u32(kEnd64).u64(44).u16(45).u16(45).u32(0).u32(0).u64(1).u64(1).u64(end64 - directory);
  file.u64(directory).u32(kEnd64Locator).u32(0).u64(end64).u32(1);
  file.u32(kEnd).u16(0).u16(0).u16(kIn64Short).u16(kIn64Short).u32(kIn64).u32(kIn64).u16(0);
  const TextSource source(file.bytes());
  const ZipReader reader(source);
  EXPECT_EQ(contents(reader, "a"), content);

  const auto locator = end64 + kEnd64Size;
  EXPECT_THAT(zip_refusal(with(file.bytes(), locator + 8, end64 + 1, 8)), HasSubstr("64-bit end"));
  EXPECT_THAT(zip_refusal(with(file.bytes(), locator + 8, ~std::uint64_t{0}, 8)),
              HasSubstr("64-bit end"));
  EXPECT_THAT(zip_refusal(with(file.bytes(), end64 + 32, ~std::uint64_t{0}, 8)),
              HasSubstr("cannot hold"));
  EXPECT_THAT(zip_refusal(with(file.bytes(), end64 + 48, ~std::uint64_t{0}, 8)),
              HasSubstr("reaches beyond"));
  EXPECT_THAT(zip_refusal(with(file.bytes(), directory + 46 + 1 + 5 + 2, 8, 2)),
              AllOf(HasSubstr("64-bit field"), HasSubstr("missing")));
}

TEST(Zip, ReadsOneWithACommentAndSaysWhatIsNone) {
  auto bytes = zip_of({{"a", "hello"}});
  EXPECT_EQ(zip_refusal(with(bytes, bytes.size() - 2, 3, 2) + "PK\5"), "");
  EXPECT_THAT(zip_refusal(""), HasSubstr("no zip archive"));
  EXPECT_THAT(zip_refusal("hello"), AllOf(HasSubstr("no zip archive"), HasSubstr("5 bytes")));
  EXPECT_THAT(zip_refusal(bytes.substr(0, bytes.size() - 1)), HasSubstr("was cut"));
}

TEST(Zip, RefusesWhatIsNotAsItSays) {
  const auto bytes = zip_of({{"a", "hello"}, {"b", "world"}});
  const auto directory = bytes.find("PK\1\2");
  const auto second = bytes.find("PK\1\2", directory + 4);
  ASSERT_NE(second, std::string::npos);
  EXPECT_THAT(zip_refusal(with(bytes, bytes.find("hello"), 'j', 1)),
              AllOf(HasSubstr("\"a\""), HasSubstr("checksum")));
  EXPECT_THAT(zip_refusal(with(bytes, directory + 10, 8, 2)), HasSubstr("compressed"));
  EXPECT_THAT(zip_refusal(with(bytes, directory + 8, 1, 2)), HasSubstr("encrypted"));
  EXPECT_THAT(zip_refusal(with(bytes, directory + 24, 6, 4)), HasSubstr("of two sizes"));
  auto large = with(with(bytes, directory + 20, 0x10000000, 4), directory + 24, 0x10000000, 4);
  EXPECT_THAT(zip_refusal(large), HasSubstr("reaches beyond"));
  EXPECT_THAT(zip_refusal(with(bytes, directory + 42, 1, 4)), HasSubstr("expected the record"));
  EXPECT_THAT(zip_refusal(with(bytes, second + 46, 'a', 1)), HasSubstr("expected the record"));
  EXPECT_THAT(zip_refusal(with(bytes, second + 28, 2, 2)), HasSubstr("offset"));
  // Both entries on one record.
  auto twice = with(with(bytes, second + 42, 0, 4), second + 46, 'a', 1);
  twice = with(twice, second + 16, zip::number(bytes, directory + 16, 4), 4);
  EXPECT_THAT(zip_refusal(twice), HasSubstr("overlap"));
  auto longer = with(with(bytes, directory + 20, 20, 4), directory + 24, 20, 4);
  EXPECT_THAT(zip_refusal(longer), HasSubstr("overlap"));
  const auto same = zip_of({{"a", "hello"}, {"a", "world"}});
  EXPECT_THAT(zip_refusal(same), HasSubstr("second record named \"a\""));
}

TEST(Archive, SaysWhatAFileIsInstead) {
  const auto said = [](const std::string& bytes) {
    return refusal([&] {
      const TextSource source(bytes);
      const ArchiveReader reader(source);
    });
  };
  const auto none = pickle(FileValue());
  EXPECT_EQ(said(file_of(none, {})), "");
  EXPECT_EQ(said(file_of(none, {}, "some name/")), "");
  EXPECT_THAT(said(zip_of({})), HasSubstr("no records"));
  EXPECT_THAT(said(zip_of({{"a/b", "c"}})), HasSubstr("without the record data.pkl"));
  EXPECT_THAT(said(zip_of({{"a/data.pkl", none}, {"a/constants.pkl", none}})),
              HasSubstr("TorchScript"));
  EXPECT_THAT(said(zip_of({{"a/data.pkl", none}, {"a/byteorder", "big"}})),
              HasSubstr("byte order"));
  EXPECT_THAT(said("\x80\x02\x8a\nl\xfc\x9c"
                   "F\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."),
              HasSubstr("before version 1.6"));
  EXPECT_THAT(said(none), HasSubstr("bare pickle"));
  EXPECT_THAT(said(file_of(pickle(small_tensor()), {})),
              HasSubstr("lacks the record \"archive/data/0\""));
  EXPECT_THAT(said(file_of(pickle(small_tensor()), {{"0", "short"}})),
              AllOf(HasSubstr("24 bytes"), HasSubstr("holds 5")));
  EXPECT_THAT(said(file_of("cos\nsystem\n.", {})), HasSubstr("os.system"));
}

TEST(Archive, ReadsRegularFilesOnly) {
  const TemporaryFolder folder("lockstep-archive");
  const auto said = [](const std::filesystem::path& path) {
    return refusal([&] { const FileSource source(path); });
  };
  EXPECT_THAT(said(folder.path() / "none"), HasSubstr("No such file"));
  EXPECT_THAT(said(folder.path()), HasSubstr("not a regular file"));
  EXPECT_THAT(said("/dev/zero"), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace lockstep::archive
