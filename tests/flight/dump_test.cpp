// The reader: both kinds of dump, damage of every sort, and how files are found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/archive/pickle.h>
#include <lockstep/base/file.h>
#include <lockstep/flight/folder.h>

#include <filesystem>

#include "../support/refusal.h"

namespace lockstep::flight {
namespace {

using namespace std::string_literals;
using archive::FileValue;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal_of(const std::string& bytes) {
  return refusal([&] {
    Names names;
    parse_dump(bytes, names);
  });
}

FileValue frame(const char* name, const char* file, int line) {
  return FileValue::Dict{{"name", name}, {"filename", file}, {"line", line}};
}
FileValue entry() {
  return FileValue::Dict{
      {"record_id", 3},
      {"pg_id", 0},
      {"process_group", FileValue::Tuple{{"0", "default_pg"}}},
      {"collective_seq_id", 4},
      {"p2p_seq_id", 1},
      {"profiling_name", "nccl:all_gather"},
      {"input_sizes", FileValue::List{FileValue::List{2, 3}, FileValue::List{}}},
      {"output_sizes", FileValue::List{FileValue(FileValue::List{4, 6})}},
      {"input_dtypes", FileValue::List{"Int", "Float", "Int"}},
      {"output_dtypes", FileValue::List{"Float"}},
      {"state", "started"},
      {"time_discovered_completed_ns", {}},
      {"duration_ms", 0.5},
      {"retired", true},
      {"is_p2p", false},
      {"frames",
       FileValue::List{frame("all_gather", "/x/torch/distributed/c10d.py", 1),
                       frame("step", "/job/train.py", 17), frame("main", "/job/m.py", 2)}}};
}
FileValue dump_of(FileValue::List entries, const char* version = "2.10") {
  return FileValue::Dict{
      {"version", version},
      {"pg_config",
       FileValue::Dict{{"0", FileValue::Dict{{"desc", "default_pg"}, {"ranks", "[0, 1]"}}}}},
      {"pg_status", FileValue::Dict{}},
      {"entries", std::move(entries)}};
}
std::string pickled() {
  return archive::pickle(dump_of({entry()}));
}
const std::string kJson =
    R"({"version":"2.10","pg_config":{"0":{"desc":"default_pg","ranks":"[0, 1]"}},"pg_status":{},)"
    R"("entries":[{"record_id":3,"pg_id":0,"process_group":["0","default_pg"],)"
    R"("collective_seq_id":4,"p2p_seq_id":1,"profiling_name":"nccl:all_gather",)"
    R"("input_sizes":[[2,3],[]],"output_sizes":[[4,6]],"input_dtypes":["Int","Float","Int"],)"
    R"("output_dtypes":["Float"],"state":"started","retired":true,"is_p2p":false,)"
    R"("duration_ms":0.5,"time_created_ns":1795278347610397775}]})";

TEST(FlightDump, PickledAndJsonSayTheSame) {
  for (const auto& bytes : {pickled(), kJson}) {
    Names names;
    const auto dump = parse_dump(bytes, names);
    ASSERT_EQ(dump.entries.size(), 1);
    const auto& read = dump.entries[0];
    EXPECT_EQ(read.record, 3);
    EXPECT_EQ(read.sequence, 4);
    EXPECT_EQ(read.p2p_sequence, 1);
    EXPECT_EQ(names.text(read.group), "0");
    EXPECT_EQ(names.text(read.group_description), "default_pg");
    EXPECT_EQ(names.text(read.operation), "nccl:all_gather");
    EXPECT_EQ(names.text(read.input_sizes), "[[2, 3], []]");
    EXPECT_EQ(names.text(read.output_sizes), "[[4, 6]]");
    EXPECT_EQ(names.text(read.input_dtypes), "Float, Int");
    EXPECT_EQ(names.text(read.call_site), bytes == kJson ? "" : "step at /job/train.py:17");
    EXPECT_EQ(read.state, State::started);
    EXPECT_TRUE(read.retired);
    EXPECT_FALSE(read.is_p2p);
    EXPECT_TRUE(dump.is_cut);
    ASSERT_EQ(dump.groups.size(), 1);
    EXPECT_EQ(names.text(dump.groups[0].ranks), "[0, 1]");
  }
}

TEST(FlightDump, AnEmptyJsonDumpHasNoEntries) {
  Names names;
  const auto dump = parse_dump(R"( {"version":"2.10","pg_config":{"":{"ranks":"[]"}}})", names);
  EXPECT_TRUE(dump.entries.empty());
  EXPECT_TRUE(dump.groups.empty());
  EXPECT_FALSE(dump.has_holes);
}

TEST(FlightDump, CutOffAnywhere) {
  for (const auto& bytes : {pickled(), kJson})
    for (std::size_t size = 0; size < bytes.size(); ++size)
      EXPECT_NE(refusal_of(bytes.substr(0, size)), "") << size;
  EXPECT_EQ(refusal_of(""), "is empty");
  EXPECT_THAT(refusal_of(pickled().substr(0, 100)), HasSubstr("found the end after"));
  EXPECT_THAT(refusal_of(kJson.substr(0, 100)),
              AllOf(HasSubstr("no whole JSON"), HasSubstr("byte 10")));
}

TEST(FlightDump, WhatWouldBeCalledIsNamedAndNotCalled) {
  EXPECT_THAT(refusal_of("\x80\x02"s + "cos\nsystem\nX\x02\0\0\0ls\x85R."s),
              HasSubstr("os.system"));
}

TEST(FlightDump, OtherThings) {
  EXPECT_THAT(refusal_of("hello"), HasSubstr("neither a pickle nor JSON"));
  EXPECT_THAT(refusal_of("{}"), HasSubstr("no \"version\""));
  EXPECT_THAT(refusal_of(archive::pickle(1)), HasSubstr("the dump is an integer, not a dict"));
  EXPECT_THAT(refusal_of(archive::pickle(dump_of({}, "3.0"))), HasSubstr("version 3.0"));
  EXPECT_THAT(refusal_of(archive::pickle(dump_of({entry(), 7}))),
              HasSubstr("entry 1: it is an integer"));
  const auto with = [](const char* key, FileValue value) {
    auto changed = entry();
    changed.as_dict()[key] = std::move(value);
    return refusal_of(archive::pickle(dump_of({changed})));
  };
  EXPECT_THAT(with("state", "melted"), HasSubstr("entry 0: an unknown state"));
  EXPECT_THAT(with("process_group", FileValue::List{"0"}), HasSubstr("process_group"));
  EXPECT_THAT(with("input_sizes", FileValue::List{3}), HasSubstr("a tensor's sizes is an integer"));
  EXPECT_THAT(with("collective_seq_id", std::int64_t{1} << 61),
              HasSubstr("collective_seq_id is 23058"));
  EXPECT_THAT(with("record_id", -2), HasSubstr("record_id is -2"));
  EXPECT_THAT(with("record_id", "three"), HasSubstr("record_id is a text"));
  EXPECT_THAT(refusal_of(archive::pickle(dump_of({FileValue::Dict{{"record_id", 1}}}))),
              HasSubstr("lacks one of"));
  EXPECT_THAT(refusal_of(R"({"version":"2.1","entries":[18446744073709551615]})"),
              HasSubstr("does not fit"));
}

// Python writes a frame once and refers to it from each entry, which a copying reader would refuse.
TEST(FlightDump, SharedFramesAreNotCopied) {
  const auto text = [](const std::string& value) {
    return "X" + std::string(1, static_cast<char>(value.size())) + "\0\0\0"s + value;
  };
  std::string bytes = "\x80\x02}(" + text("version") + text("2.10") + text("entries") + "](";
  const std::string fields = text("process_group") + text("0") + text("default_pg") + "\x86" +
                             text("collective_seq_id") + "K\x01" + text("profiling_name") +
                             text("nccl:x") + text("input_sizes") + "]" + text("output_sizes") +
                             "]" + text("state") + text("started") + text("frames");
  std::string frames = "(}(" + text("name") + text("f") + text("filename") +
                       text(std::string(100, 'x')) + text("line") + "K\x01uq\x00"s;
  for (int i = 0; i < 200; ++i) frames += "h\x00"s;
  for (int i = 0; i < 2000; ++i)
    bytes += "}(" + text("record_id") + "M" + static_cast<char>(i) + static_cast<char>(i >> 8) +
             fields + (i == 0 ? frames + "tq\x01"s : "h\x01"s) + "u";
  bytes += "eu.";
  Names names;
  EXPECT_EQ(parse_dump(bytes, names).entries.size(), 2000);
  EXPECT_THAT(refusal([&] { archive::unpickle(bytes); }), HasSubstr("far more memory"));
}

class FlightFolder : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) {
    write_file(folder_.path() / name, bytes);
  }
  std::vector<DumpFile> found(const std::optional<std::string>& prefix = {}) {
    return find_dumps(folder_.path(), prefix);
  }
  TemporaryFolder folder_{"lockstep-flight"};
};

TEST_F(FlightFolder, FilesByRankUnderAnyName) {
  for (const int rank : {10, 9, 0}) write("fr_" + std::to_string(rank) + ".json", kJson);
  write("README", "{");
  write("core.17", "neither");
  const auto files = found();
  ASSERT_EQ(files.size(), 3);
  EXPECT_EQ(files[2].rank, 10);
  EXPECT_EQ(read_dumps(files).ranks[1].rank, 9);
  EXPECT_EQ(found("fr_").size(), 3);
}

TEST_F(FlightFolder, TorchsOwnNamesGoFirstWhateverIsInThem) {
  for (const std::string usual : {"comm_lib_trace_rank_", "nccl_trace_rank_"}) {
    const TemporaryFolder folder("lockstep-flight");
    for (const char* name : {"fr_0", "fr_1"}) write_file(folder.path() / name, pickled());
    write_file(folder.path() / (usual + "0"), "");
    EXPECT_EQ(find_dumps(folder.path(), std::nullopt).size(), 1) << usual;
  }
}

TEST_F(FlightFolder, NoDumps) {
  EXPECT_TRUE(found().empty());
  write("rank_0.trace", "{");
  write("events.1", "text");
  EXPECT_TRUE(found().empty());
}

TEST_F(FlightFolder, SeveralNamesAndTwoFilesOfARank) {
  write("a_0", pickled());
  write("b_0.json", kJson);
  EXPECT_THAT(refusal([&] { found(); }),
              AllOf(HasSubstr("\"a_\", \"b_\""), HasSubstr("--dump-prefix")));
  write("a_0.json", kJson);
  EXPECT_THAT(refusal([&] { found("a_"); }), HasSubstr("rank 0 has two dumps"));
}

TEST_F(FlightFolder, TheUnreadableFileIsNamed) {
  for (int rank = 0; rank < 5; ++rank)
    write("fr_" + std::to_string(rank), rank % 2 == 1 ? pickled().substr(0, 50) : pickled());
  EXPECT_THAT(refusal([&] { read_dumps(found()); }),
              AllOf(HasSubstr("fr_1: at byte "), HasSubstr("another file cannot be read either")));
}

}  // namespace
}  // namespace lockstep::flight
