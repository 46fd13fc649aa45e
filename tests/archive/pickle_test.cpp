// The pickler and the restricted unpickler. tests/parity has Python read the one's files and write the
// other's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "files.h"

namespace lockstep::archive {
namespace {

using namespace std::string_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal_of(const std::string& opcodes) {
  return refusal([&] { unpickle("\x80\x02" + opcodes + "."); });
}

std::string text(const std::string& value) {  // BINUNICODE
  std::string code = "X";
  for (int i = 0; i < 4; ++i) code += static_cast<char>(value.size() >> (8 * i));
  return code + value;
}
std::string number(std::int64_t value) {  // LONG1
  std::string code = "\x8a\x08";
  for (int i = 0; i < 8; ++i) code += static_cast<char>(value >> (8 * i));
  return code;
}
std::string numbers(const std::vector<std::int64_t>& values) {
  std::string code = "(";
  for (const auto value : values) code += number(value);
  return code + "t";
}
std::string storage(std::int64_t elements, const std::string& type = "FloatStorage",
                    const std::string& key = "0", const std::string& location = "cpu") {
  return "(" + text("storage") + "ctorch\n" + type + "\n" + text(key) + text(location) +
         number(elements) + "tQ";
}
// _rebuild_tensor_v2 of a storage of `elements` floats.
std::string tensor(std::int64_t elements, std::int64_t offset,
                   const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides,
                   const std::string& hooks = "}") {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage(elements) + number(offset) +
         numbers(sizes) + numbers(strides) + "\x89" + hooks + "tR";
}
TensorInFile unpickled(const std::string& opcodes) {
  return unpickle("\x80\x02" + opcodes + ".").as_tensor();
}

TEST(Pickle, EveryKindComesBack) {
  const auto value = every_kind();
  EXPECT_TRUE(unpickle(pickle(value)) == value);
  const auto doubles = unpickle(pickle(value)).at("doubles").as_list();
  EXPECT_TRUE(std::signbit(doubles[1].as_double()));
  EXPECT_TRUE(std::isnan(unpickle(pickle(std::nan(""))).as_double()));
  EXPECT_EQ(unpickle(pickle(FileValue())).kind(), "NoneType"s);
}

TEST(Pickle, DictsKeepTheirOrder) {
  FileValue::Dict dict;
  for (int i = 0; i < 300; ++i) dict["key " + std::to_string(i * 7919 % 300)] = i;
  const auto back = unpickle(pickle(dict));
  int next = 0;
  for (const auto& [key, value] : back.as_dict()) {
    EXPECT_EQ(key.as_string(), "key " + std::to_string(next * 7919 % 300));
    EXPECT_EQ(value.as_int(), next++);
  }
  EXPECT_EQ(next, 300);
}

// More names than one byte can number.
TEST(Pickle, NamesThatComeAgainAreWrittenOnce) {
  FileValue::List list;
  for (int i = 0; i < 2000; ++i) list.push_back("name number " + std::to_string(i % 1000));
  const auto bytes = pickle(list);
  EXPECT_LT(bytes.size(), 30'000u);
  EXPECT_TRUE(unpickle(bytes) == FileValue(list));
}

TEST(Pickle, EveryDtypeComesBack) {
  for (int i = 0; i <= static_cast<int>(Dtype::kLast); ++i) {
    auto one = small_tensor();
    one.dtype = static_cast<Dtype>(i);
    one.storage.bytes = 6 * item_size(one.dtype);
    EXPECT_TRUE(unpickle(pickle(one)) == FileValue(one)) << name(one.dtype);
    EXPECT_EQ(dtype_of_name(name(one.dtype)), one.dtype);
  }
}

TEST(Pickle, RefusesWhatPythonCouldNotRead) {
  EXPECT_THAT(refusal([] { pickle("\xff"); }), HasSubstr("not UTF-8"));
  FileValue deep;
  for (int i = 0; i < kDeepest + 2; ++i) deep = FileValue::List{deep};
  EXPECT_THAT(refusal([&] { pickle(deep); }), HasSubstr("nested more than 100"));
}

TEST(Unpickle, RefusesForeignNamesByName) {
  EXPECT_THAT(refusal_of("cos\nsystem\n" + text("echo") + "\x85R"),
              AllOf(HasSubstr("os.system"), HasSubstr("refused"), HasSubstr("at byte 2")));
  for (const auto* module_and_name :
       {"builtins\neval\n", "posix\nsystem\n", "__builtin__\nset\n",
        "torch._utils\n_rebuild_qtensor\n", "torch\nload\n", "torch\nFloatStorag\n",
        "collections\nOrderedDict2\n", "\n\n", "numpy.core.multiarray\n_reconstruct\n",
        "_codecs\nencode\n", "torch\ndevice\n"})
    EXPECT_THAT(refusal_of("c"s + module_and_name), HasSubstr("refused")) << module_and_name;
  EXPECT_THAT(refusal_of("c\x1b[2J\nx\n"),
              HasSubstr("\\x1b[2J.x"));  // nothing reaches the terminal
}

TEST(Unpickle, RefusesForeignOpcodesByName) {
  const std::string known = "N\x88\x89KMJ\x8aGX]}()t\x85\x86\x87"s + "aesuqrhjcQRb.\x80";
  int refused = 0;
  for (int code = 0; code < 256; ++code) {
    const auto opcode = static_cast<char>(code);
    if (known.find(opcode) != std::string::npos) continue;
    char name[8];
    std::snprintf(name, sizeof name, "0x%02x", static_cast<unsigned>(code));
    EXPECT_THAT(refusal_of(std::string(1, opcode)), AllOf(HasSubstr(name), HasSubstr("refused")));
    ++refused;
  }
  EXPECT_EQ(refused, 256 - 31);
}

TEST(Unpickle, CallsOnlyWhatItKnows) {
  EXPECT_THAT(refusal_of(text("f") + ")R"), HasSubstr("calls a text"));
  EXPECT_THAT(refusal_of("ctorch\nfloat32\n)R"), HasSubstr("calls a storage class or a dtype"));
  EXPECT_THAT(refusal_of("ccollections\nOrderedDict\n" + number(1) + "\x85R"),
              HasSubstr("given 1 arguments"));
  EXPECT_THAT(refusal_of("ctorch\nfloat32\n"), HasSubstr("holds a global where a value"));
  EXPECT_THAT(refusal_of(storage(6)), HasSubstr("holds a storage where a value"));
  EXPECT_THAT(refusal_of("N}b"), HasSubstr("expected a dict"));
}

TEST(Unpickle, ReadsWhatPythonMayWrite) {
  EXPECT_EQ(unpickle("\x80\x02\x8a\x00."s).as_int(), 0);
  EXPECT_EQ(unpickle("\x80\x02\x8a\x01\xff.").as_int(), -1);
  EXPECT_EQ(unpickle("\x80\x02\x8a\x05\xff\xff\xff\xff\x00."s).as_int(), 4294967295);
  EXPECT_EQ(unpickle("\x80\x02M\x00\x80."s).as_int(), 32768);
  EXPECT_EQ(unpickle("\x80\x02J\x00\x00\x00\x80."s).as_int(), INT32_MIN);
  EXPECT_TRUE(unpickle("\x80\x02(K\x01K\x02t.") == FileValue(FileValue::Tuple{{1, 2}}));
  EXPECT_TRUE(unpickle("\x80\x02]q\x00K\x01"
                       "a."s) == FileValue(FileValue::List{1}))
      << "one APPEND";
  EXPECT_TRUE(unpickle("\x80\x02}X\x01\x00\x00\x00kK\x01s."s) ==
              FileValue(FileValue::Dict{{"k", 1}}));
  // OrderedDict with attributes, torch.Size, Counter.
  EXPECT_TRUE(unpickle("\x80\x02"
                       "ccollections\nOrderedDict\n)R}b.") == FileValue(FileValue::Dict{}));
  EXPECT_TRUE(unpickle("\x80\x02"
                       "ctorch\nSize\nK\x02\x85\x85R.") == FileValue(FileValue::Tuple{{2}}));
  EXPECT_TRUE(unpickle("\x80\x02"
                       "ccollections\nCounter\n}K\x03K\x01s\x85R.") ==
              FileValue(FileValue::Dict{{3, 1}}));
  // A value referred to twice, and changed after it was first named.
  EXPECT_TRUE(unpickle("\x80\x02](]q\x00K\x05"
                       "ah\x00"
                       "e."s) ==
              FileValue(FileValue::List{FileValue::List{5}, FileValue::List{5}}));
  // The key that comes last counts, in the first one's place.
  EXPECT_TRUE(unpickle("\x80\x02}(K\x01K\x0aK\x02K\x0bK\x01K\x0cu.") ==
              FileValue(FileValue::Dict{{1, 12}, {2, 11}}));
}

TEST(Unpickle, SaysWhatIsWrongAndWhere) {
  EXPECT_THAT(refusal([] { unpickle(""); }), AllOf(HasSubstr("byte 0"), HasSubstr("the end")));
  EXPECT_THAT(refusal_of(""), HasSubstr("found 0"));
  EXPECT_THAT(refusal([] { unpickle("\x80\x04N."); }), HasSubstr("protocol 4"));
  EXPECT_THAT(refusal_of("\x8a\x09" + std::string(9, '\1')), HasSubstr("integer of 9 bytes"));
  EXPECT_THAT(refusal_of("X\xff\xff\xff\xffhello"), HasSubstr("expected 4294967295 bytes"));
  EXPECT_THAT(refusal_of("N.N"), HasSubstr("2 bytes follow"));
  EXPECT_THAT(refusal_of("h\x05"), HasSubstr("refers to value 5"));
  EXPECT_THAT(refusal_of("t"), HasSubstr("expected a mark"));
  EXPECT_THAT(refusal_of("K\x01(\x85"), HasSubstr("expected 1 values"));
  EXPECT_THAT(refusal_of("q\x01"), HasSubstr("nothing on the stack"));
  EXPECT_THAT(refusal_of("}(K\x01u"), HasSubstr("a key without a value"));
  EXPECT_THAT(refusal_of("}(NNu"), HasSubstr("None as a key"));
  EXPECT_THAT(refusal_of("K\x01K\x02"
                         "a"),
              HasSubstr("expected a list"));
  EXPECT_THAT(refusal_of("cabc"), HasSubstr("without an end"));
}

TEST(Unpickle, TensorsLieInsideTheirStorage) {
  EXPECT_TRUE(unpickled(tensor(6, 0, {2, 3}, {3, 1})) == small_tensor());
  unpickled(tensor(6, 5, {}, {}));
  unpickled(tensor(1, 0, {1'000'000, 1'000'000}, {0, 0}));  // expanded: no more memory than it has
  unpickled(tensor(0, 0, {0}, {1}));
  EXPECT_EQ(unpickled(tensor(12, 16, {0, 0}, {4, 1})).offset, 0) << "x[3:, 4:] of [3, 4]";

  const auto refused = [](std::int64_t elements, std::int64_t offset,
                          const std::vector<std::int64_t>& sizes,
                          const std::vector<std::int64_t>& strides) {
    return refusal([&] { unpickled(tensor(elements, offset, sizes, strides)); });
  };
  EXPECT_THAT(refused(6, 1, {2, 3}, {3, 1}), HasSubstr("beyond the storage"));
  EXPECT_THAT(refused(6, 6, {}, {}), HasSubstr("beyond the storage"));
  EXPECT_THAT(refused(5, 0, {2, 3}, {3, 1}), HasSubstr("beyond the storage"));
  EXPECT_THAT(refused(6, 0, {2, 3}, {4, 1}), HasSubstr("beyond the storage"));
  EXPECT_THAT(refused(0, 0, {1}, {1}), HasSubstr("beyond the storage"));
  EXPECT_THAT(refused(6, -1, {2}, {1}), HasSubstr("negative"));
  EXPECT_THAT(refused(6, 0, {-2}, {1}), HasSubstr("negative"));
  EXPECT_THAT(refused(6, 5, {2}, {-1}), HasSubstr("negative"));
  EXPECT_THAT(refused(6, 0, {2, 3}, {1}), HasSubstr("not a stride for each"));
  EXPECT_THAT(refused(6, INT64_MAX, {2}, {1}), HasSubstr("too large"));
  EXPECT_THAT(refused(6, 0, {3}, {INT64_MAX}), HasSubstr("too large"));
  EXPECT_THAT(refused(6, 0, {INT64_MAX, 4}, {0, 0}), HasSubstr("too large"));
  EXPECT_THAT(refused(6, 0, std::vector<std::int64_t>(65, 1), std::vector<std::int64_t>(65, 1)),
              HasSubstr("65 dimensions"));
  EXPECT_THAT(refusal([] { unpickled(tensor(-1, 0, {1}, {1})); }), HasSubstr("-1 elements"));
  EXPECT_THAT(refusal([] { unpickled(tensor(INT64_MAX, 0, {1}, {1})); }), HasSubstr("elements"));
}

TEST(Unpickle, TensorsAreWhatTheySeem) {
  EXPECT_THAT(refusal_of(tensor(6, 0, {2}, {1}, "}K\x01K\x01s")), HasSubstr("given hooks"));
  EXPECT_THAT(refusal_of("ctorch._utils\n_rebuild_tensor_v2\n)R"), HasSubstr("given 0 arguments"));
  EXPECT_THAT(refusal_of("ctorch._utils\n_rebuild_parameter\n(N\x88}tR"), HasSubstr("given None"));
  EXPECT_THAT(refusal_of(storage(6, "float32")), HasSubstr("names no storage class"));
  EXPECT_THAT(refusal_of("NQ"), HasSubstr("given None"));
  // One storage, described in two ways.
  const auto pair = [](const std::string& second) {
    return refusal_of("(" + storage(6) + second + "t");
  };
  EXPECT_THAT(pair(storage(7)), HasSubstr("described twice"));
  EXPECT_THAT(pair(storage(6, "FloatStorage", "0", "cuda:0")), HasSubstr("described twice"));
  EXPECT_THAT(pair(storage(6, "FloatStorage", "1", "cuda:0")), HasSubstr("holds a storage"));
}

}  // namespace
}  // namespace lockstep::archive
