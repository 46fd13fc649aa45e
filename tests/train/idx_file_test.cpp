// The IDX reader on whole files and on every kind of damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/train/idx_file.h>

#include <numeric>

#include "../support/refusal.h"
#include "gzip.h"

namespace lockstep {
namespace {

using std::filesystem::path;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// count items of 2 x 3 bytes: 0, 1, 2, ...
std::string images(std::uint32_t count) {
  std::string text = header({0x803, count, 2, 3});
  for (std::uint32_t i = 0; i < count * 6; ++i) text += static_cast<char>(i);
  return text;
}

// Bytes that deflate cannot shrink, so that a cut of the packed file is a cut of the data.
std::string noise(std::size_t size) {
  std::string text;
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < size; ++i) {
    state = state * 1664525 + 1013904223;
    text += static_cast<char>(state >> 24);
  }
  return text;
}

class IdxFile : public ::testing::Test {
 protected:
  path write(const std::string& bytes) {
    const path file = folder_.path() / "some-images.gz";
    write_file(file, bytes);
    return file;
  }
  // What reading says; empty when it does not throw.
  std::string problem(const std::string& bytes, std::int64_t limit = 0) {
    return refusal([&] { read_idx(write(bytes), {2, 3}, limit); });
  }
  auto says(std::int64_t offset, const std::string& expected, const std::string& found) {
    return AllOf(StartsWith((folder_.path() / "some-images.gz").string()),
                 HasSubstr("at offset " + std::to_string(offset) + " of"),
                 HasSubstr("expected " + expected), HasSubstr("found" + found));
  }
  TemporaryFolder folder_{"idx"};
};

TEST_F(IdxFile, WholeFile) {
  const auto data = read_idx(write(gzip(images(4))), {2, 3}, 0);
  EXPECT_EQ(data.count, 4);
  EXPECT_EQ(data.items, 4);
  EXPECT_EQ(data.header_bytes, 16);
  std::vector<std::uint8_t> expected(24);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(data.values, expected);
}

TEST_F(IdxFile, PartKeepsTheCountAndALargeLimitIsTheWhole) {
  const auto file = write(gzip(images(4)));
  const auto part = read_idx(file, {2, 3}, 3);
  EXPECT_EQ(part.count, 4);
  EXPECT_EQ(part.items, 3);
  EXPECT_EQ(part.values.size(), 18U);
  EXPECT_EQ(read_idx(file, {2, 3}, 5).items, 4);
}

TEST_F(IdxFile, NoItems) {
  EXPECT_EQ(read_idx(write(gzip(images(0))), {2, 3}, 0).items, 0);
}

TEST_F(IdxFile, WrongMagic) {
  auto bytes = images(4);
  bytes[3] = 1;
  EXPECT_THAT(problem(gzip(bytes)), says(0, "the magic number 0x00000803", " 0x00000801"));
  bytes[3] = 3;
  bytes[2] = 0x0d;  // float32
  EXPECT_THAT(problem(gzip(bytes)), says(0, "the magic number 0x00000803", " 0x00000d03"));
}

TEST_F(IdxFile, WrongDimensions) {
  const std::string body(24, 'x');
  EXPECT_THAT(problem(gzip(header({0x803, 4, 3, 2}) + body)), says(8, "the dimension 2", " 3"));
  EXPECT_THAT(problem(gzip(header({0x803, 4, 2, 2}) + body)), says(12, "the dimension 3", " 2"));
}

TEST_F(IdxFile, HeaderCutShort) {
  EXPECT_THAT(problem(gzip(header({0x803, 4, 2}) + "ab")),
              says(14, "4 bytes (a dimension) from offset 12", " the end of the data after 2"));
  EXPECT_THAT(problem(gzip("")),
              says(0, "4 bytes (the magic number) from offset 0", " the end of the data after 0"));
}

TEST_F(IdxFile, FewerItemsThanTheHeaderSays) {
  auto bytes = images(4);
  bytes.resize(bytes.size() - 5);
  EXPECT_THAT(problem(gzip(bytes)),
              says(35, "24 bytes (4 items) from offset 16", " the end of the data after 19"));
  // Three whole items are there, and three may be read.
  EXPECT_EQ(problem(gzip(bytes), 3), "");
}

TEST_F(IdxFile, MoreItemsThanTheHeaderSays) {
  const auto bytes = images(4) + "y";
  EXPECT_THAT(problem(gzip(bytes)), says(40, "the end of the data", " more bytes"));
  EXPECT_EQ(problem(gzip(bytes), 3), "");
}

TEST_F(IdxFile, CountThatTheFileCannotHold) {
  // 4,294,967,295 items of 6 bytes: refused before 24 GB are asked for.
  EXPECT_THAT(problem(gzip(header({0x803, 0xffffffff, 2, 3}) + "abc")),
              says(4, "a number of items that a file of", " 4294967295"));
}

TEST_F(IdxFile, PackedFileCutShort) {
  const auto packed = gzip(header({0x803, 100, 2, 3}) + noise(600));
  // In the middle of the data.
  EXPECT_THAT(problem(packed.substr(0, packed.size() / 2)),
              AllOf(HasSubstr("some-images.gz: at offset "),
                    HasSubstr("expected more gzip data, found the end of the file")));
  // In the checksum: all items are there, but whether they are right is unknown.
  EXPECT_THAT(problem(packed.substr(0, packed.size() - 5)),
              says(616, "more gzip data", " the end of the file"));
}

TEST_F(IdxFile, WrongChecksum) {
  auto packed = gzip(images(4));
  packed[packed.size() - 8] ^= 1;
  EXPECT_THAT(problem(packed), says(40, "sound gzip data", ": incorrect data check"));
  // A part cannot be checked: the header says so.
  EXPECT_EQ(problem(packed, 3), "");
}

TEST_F(IdxFile, FlippedByteInsideTheData) {
  auto packed = gzip(header({0x803, 100, 2, 3}) + noise(600));
  packed[packed.size() / 2] ^= 0x40;
  EXPECT_THAT(problem(packed), HasSubstr("expected sound gzip data, found: "));
}

TEST_F(IdxFile, NotGzip) {
  EXPECT_THAT(problem(images(4)), says(0, "sound gzip data", ": incorrect header check"));
  EXPECT_THAT(problem(""), says(0, "more gzip data", " the end of the file"));
}

TEST_F(IdxFile, BytesAfterTheGzipData) {
  EXPECT_THAT(problem(gzip(images(4)) + "tail"),
              says(40, "the end of the file after the gzip data", " more bytes"));
}

TEST_F(IdxFile, MissingFile) {
  try {
    read_idx(folder_.path() / "none.gz", {}, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("none.gz: cannot be opened: No such file")));
  }
}

}  // namespace
}  // namespace lockstep
