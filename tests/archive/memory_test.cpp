// What a pickle may take of memory: as much as any honest one needs, however plain its values, and no
// more than a multiple of its size, whatever it refers to how often.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "files.h"

namespace lockstep::archive {
namespace {

using namespace std::string_literals;
using ::testing::HasSubstr;

constexpr int kMillion = 1'000'000;

std::string little_endian(std::int64_t value, int bytes) {
  std::string code;
  for (int i = 0; i < bytes; ++i) code += static_cast<char>(value >> (8 * i));
  return code;
}
std::string text(const std::string& value) {  // BINUNICODE
  return "X" + little_endian(static_cast<std::int64_t>(value.size()), 4) + value;
}
std::string refusal_of(const std::string& opcodes) {
  return refusal([&] { unpickle("\x80\x02" + opcodes + "."); });
}

using Item = std::function<FileValue(int)>;

// Compared as pickles, so that one copy of a million values is in memory, not two.
void expect_back(const char* what, FileValue value) {
  const auto bytes = pickle(value);
  value = FileValue();
  EXPECT_EQ(refusal([&] { EXPECT_TRUE(pickle(unpickle(bytes)) == bytes) << what; }), "") << what;
}
void expect_list_back(const char* what, const Item& item) {
  FileValue::List list;
  for (int i = 0; i < kMillion; ++i) list.push_back(item(i));
  expect_back(what, std::move(list));
}
void expect_dict_back(const char* what, const Item& item) {
  FileValue::Dict dict;
  for (int i = 0; i < kMillion; ++i) dict[i] = item(i);
  expect_back(what, std::move(dict));
}

TEST(PickleMemory, AMillionPlainValues) {
  expect_list_back("ints", [](int i) { return FileValue(i); });
  expect_list_back("small ints", [](int i) { return FileValue(i % 256); });
  expect_list_back("bools", [](int i) { return FileValue(i % 3 == 0); });
  expect_list_back("nothing", [](int) { return FileValue(); });
  expect_list_back("floats", [](int i) { return FileValue(0.5 * i); });
  expect_list_back("empty tuples", [](int) { return FileValue(FileValue::Tuple{}); });
  expect_list_back("names", [](int i) { return FileValue(i % 2 == 0 ? "cat" : "dog"); });
}

TEST(PickleMemory, AMillionEntries) {
  expect_dict_back("ints by int", [](int i) { return FileValue(i + 1); });
  expect_dict_back("bools by int", [](int i) { return FileValue(i % 3 == 0); });
}

// The most memory by the byte that pickle() asks for: names as long as it ever refers to, again and
// again as keys of nothing.
TEST(PickleMemory, LongNamesAgainAndAgain) {
  FileValue::Dict dict;
  for (int i = 0; i < 100; ++i) dict[std::string(252, 'x') + std::to_string(100 + i)] = FileValue();
  expect_back("long names", FileValue::List(1500, dict));
}

// Python's pickler writes a list or dict in batches of a thousand.
std::string as_python_writes(const std::string& empty, const std::string& end,
                             const std::function<std::string(int)>& item) {
  auto code = "\x80\x02" + empty + "q\x00"s;
  for (int i = 0; i < kMillion; ++i) {
    if (i % 1000 == 0) code += "(";
    code += item(i);
    if (i % 1000 == 999) code += end;
  }
  return code + ".";
}
void expect_list(const char* what, const std::function<std::string(int)>& code, const Item& item) {
  FileValue value;
  ASSERT_EQ(refusal([&] { value = unpickle(as_python_writes("]", "e", code)); }), "") << what;
  ASSERT_EQ(value.as_list().size(), std::size_t{kMillion}) << what;
  int wrong = 0;
  for (int i = 0; i < kMillion; ++i)
    wrong += !(value.as_list()[static_cast<std::size_t>(i)] == item(i));
  EXPECT_EQ(wrong, 0) << what;
}

TEST(PickleMemory, AMillionAsPythonWritesThem) {
  expect_list(
      "BININT1", [](int i) { return "K" + little_endian(i % 256, 1); },
      [](int i) { return FileValue(i % 256); });
  expect_list(
      "BININT2", [](int i) { return "M" + little_endian(i % 65536, 2); },
      [](int i) { return FileValue(i % 65536); });
  expect_list(
      "BININT", [](int i) { return "J" + little_endian(-i, 4); },
      [](int i) { return FileValue(-i); });
  expect_list(
      "NEWTRUE and NEWFALSE", [](int i) { return i % 3 == 0 ? "\x88"s : "\x89"s; },
      [](int i) { return FileValue(i % 3 == 0); });
  expect_list(
      "NONE", [](int) { return "N"s; }, [](int) { return FileValue(); });
  expect_list(
      "EMPTY_TUPLE", [](int) { return ")"s; }, [](int) { return FileValue(FileValue::Tuple{}); });

  FileValue value;
  const auto entry = [](int i) { return "J" + little_endian(i, 4) + "K" + little_endian(i, 1); };
  ASSERT_EQ(refusal([&] { value = unpickle(as_python_writes("}", "u", entry)); }), "");
  ASSERT_EQ(value.as_dict().size(), std::size_t{kMillion});
  EXPECT_EQ(value.at(kMillion - 1).as_int(), (kMillion - 1) % 256);
}

// A hundred thousand references: the file's size earns more than the fixed part, and not enough.
TEST(PickleMemory, ManyReferencesToOneLargeValue) {
  const auto again = [](const std::string& value, const std::string& each) {
    auto code = value + "q\x00"s + "](";
    for (int i = 0; i < 100'000; ++i) code += each;
    return refusal_of(code + "e");
  };
  std::string hundred = "](";
  for (int i = 0; i < 100; ++i) hundred += "N";
  EXPECT_THAT(again(hundred + "e", "h\x00"s), HasSubstr("far more memory"));
  EXPECT_THAT(again(text(std::string(10'000, 'x')), "h\x00"s), HasSubstr("far more memory"));
  EXPECT_THAT(again(text(std::string(10'000, 'x')), "}h\x00Ns"s), HasSubstr("far more memory"));
}

// Nine lists, each of ten references to the one before: a billion values in 300 bytes.
TEST(PickleMemory, OfAFewBytesIsBounded) {
  std::string bomb = "]q\x00"s;
  for (char level = 1; level < 10; ++level) {
    bomb += "](";
    for (int i = 0; i < 10; ++i) bomb += "h"s + static_cast<char>(level - 1);
    bomb += "eq"s + level;
  }
  EXPECT_THAT(refusal([&] { unpickle("\x80\x02" + bomb + "."); }), HasSubstr("far more memory"));
  // One long text, named a million times.
  std::string names = text(std::string(100'000, 'x')) + "q\x00"s + "](";
  for (int i = 0; i < 100'000; ++i) names += "h\x00"s;
  EXPECT_THAT(refusal([&] { unpickle("\x80\x02" + names + "e."); }), HasSubstr("far more memory"));
  // A list inside itself.
  EXPECT_THAT(refusal_of("]q\x00h\x00"s + "a"), HasSubstr("nested more than 100"));
  std::string deep = "]";
  for (int i = 0; i < 5000; ++i) deep = "]" + deep + "a";
  EXPECT_THAT(refusal_of(deep), HasSubstr("nested more than 100"));
}

}  // namespace
}  // namespace lockstep::archive
