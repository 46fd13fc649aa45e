// What is written is what is read, in the layout that trace.md gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/clock.h>
#include <lockstep/base/file.h>
#include <lockstep/trace/json.h>
#include <lockstep/trace/reader.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>

#include "../support/checkout.h"
#include "events.h"

namespace lockstep::trace {
namespace {

using test::kKinds;
using test::random_payload;
using test::text_of;

// The fields that visit() names, as places inside the struct.
struct Places {
  struct Place {
    std::size_t begin, end, alignment;
  };
  template <class T>
  void operator()(const char*, T& field) {
    const auto begin = static_cast<std::size_t>(reinterpret_cast<const char*>(&field) - object);
    all.push_back({begin, begin + sizeof field, alignof(T)});
  }
  const char* object;
  std::vector<Place> all;
};

template <class T>
void expect_no_gap(const char* name) {
  if (std::is_empty_v<T>) return;
  T object;
  Places places{reinterpret_cast<const char*>(&object), {}};
  object.visit(places);
  std::sort(places.all.begin(), places.all.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::size_t end = 0;
  for (const auto& place : places.all) {
    EXPECT_EQ(place.begin, (end + place.alignment - 1) / place.alignment * place.alignment) << name;
    end = place.end;
  }
  EXPECT_LT(sizeof object - end, alignof(T)) << name;
}

// A field that visit() forgets is a hole in the struct, whoever writes and reads it.
TEST(TraceEvents, VisitNamesEveryField) {
  expect_no_gap<Summary>("summary");
  expect_no_gap<LayerMode>("a layer's mode");
  expect_no_gap<UntrainedLeaf>("an untrained leaf");
  expect_no_gap<MovingValue>("a moving value");
  test::RandomFields fields(1);
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    std::visit([](const auto& event) { expect_no_gap<std::decay_t<decltype(event)>>(event.kName); },
               random_payload(kind, fields));
}

TEST(TraceFormat, EveryKindComesBackAsItWas) {
  const TemporaryFolder folder("lockstep-trace");
  test::RandomFields fields(20260101);
  std::vector<std::string> written;
  {
    Writer writer(folder.path(), {.rank = 2, .world_size = 5, .kind = "device"});
    for (int round = 0; round < 40; ++round)
      for (std::size_t kind = 0; kind < kKinds; ++kind) {
        const auto payload = random_payload(kind, fields);
        writer.set_step(round - 1);
        writer.record(payload);
        written.push_back(std::to_string(round - 1) + text_of(payload));
      }
  }
  const auto trace = read(folder.path());
  ASSERT_EQ(trace.ranks.size(), 1u);
  EXPECT_EQ(trace.world_size, 5);
  const auto& rank = trace.ranks[0];
  EXPECT_EQ(rank.participant.rank, 2);
  EXPECT_EQ(rank.participant.world_size, 5);
  EXPECT_EQ(rank.participant.kind, "device");
  EXPECT_TRUE(rank.closed);
  EXPECT_EQ(rank.pid, getpid());
  ASSERT_EQ(rank.events.size(), written.size());
  auto last = rank.started_ns;
  for (std::size_t i = 0; i < written.size(); ++i) {
    const auto& event = rank.events[i];
    EXPECT_EQ(std::to_string(event.step) + text_of(event.payload), written[i]);
    EXPECT_LE(last, event.time_ns);
    last = event.time_ns;
  }
  EXPECT_LE(last, monotonic_ns());
  EXPECT_LT(std::abs(rank.started_unix_ns / 1'000'000'000 - std::time(nullptr)), 60);
}

// Events longer than what the file grows by, and enough of them to grow it many times.
TEST(TraceFormat, GrowsAsFarAsNeeded) {
  const TemporaryFolder folder("lockstep-trace");
  const auto file = folder.path() / "rank_0.trace";
  std::vector<std::int64_t> ids(400'000);  // 3.2 MB
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i * 7);
  const Samples samples{"train", ids};
  {
    Writer writer(folder.path(), {});
    for (int i = 0; i < 4; ++i) writer.record(samples);
    for (int i = 0; i < 50'000; ++i) writer.record(SetEpoch{i});
    EXPECT_EQ(std::filesystem::file_size(file) % (1 << 20), 0u);
  }
  const auto trace = read_file(file);
  ASSERT_EQ(trace.events.size(), 50'004u);
  for (const auto& at : trace.all<Samples>()) EXPECT_EQ(at.event->ids, samples.ids);
  const auto epochs = trace.all<SetEpoch>();
  for (int i = 0; i < 50'000; ++i) ASSERT_EQ(epochs[static_cast<std::size_t>(i)].event->epoch, i);
  // Head, four of 24 + 4 + 5 + 4 + 8 n (rounded up to 8), and 32 each: nothing is left over.
  EXPECT_EQ(std::filesystem::file_size(file), 4096u + 4 * (40u + 3'200'000u) + 50'000u * 32);
}

template <class T>
T at(const std::string& bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// Of 10,000 ranks, memory would not hold it once for each.
TEST(TraceFormat, WhatSeveralRanksSayIsHeldOnce) {
  const TemporaryFolder folder("lockstep-trace");
  for (int rank = 0; rank < 2; ++rank) {
    Writer writer(folder.path(), {.rank = rank, .world_size = 2});
    writer.record(Update{{0.1}});
    writer.record(Loss{.backward_value = 1.0 + rank});
    writer.record(Samples{"train", {7, 8 + rank}});
    writer.record(RandomNumbers{{7, 8 + rank}, {1, 2}});
    writer.leave(writer.enter({.sequence = 1, .group = "0", .op = "barrier"}), false);
  }
  auto trace = read(folder.path());
  auto &a = trace.ranks[0].events, &b = trace.ranks[1].events;
  ASSERT_EQ(a.size(), 5u);
  ASSERT_EQ(b.size(), 5u);
  EXPECT_EQ(a[0].as<Update>(), b[0].as<Update>()) << "at one address";
  EXPECT_EQ(a[4].as<Collective>(), b[4].as<Collective>());
  EXPECT_LT(a[4].left_ns, b[4].left_ns) << "each rank's own";
  EXPECT_EQ(b[1].as<Loss>()->backward_value, 2);
  EXPECT_EQ(b[2].as<Samples>()->ids[1], 9);
  EXPECT_EQ(b[2].as<Samples>()->ids.begin(), b[3].as<RandomNumbers>()->ids.begin());
  b[0].change<Update>()->lr = {0.2};
  EXPECT_EQ(a[0].as<Update>()->lr[0], 0.1);
  EXPECT_EQ(b[0].as<Update>()->lr[0], 0.2);
}

TEST(TraceFormat, ARanksOwnWordOfItsEndCountsMoreThanItsLaunchers) {
  const TemporaryFolder folder("lockstep-trace");
  for (int rank = 0; rank < 4; ++rank) {
    Writer writer(folder.path(), {.rank = rank, .world_size = 4});
    // Rank 3, once it was told to end: a loader's worker was told, too.
    const std::int64_t at = rank == 1 ? 5 : 7;
    if (rank % 2 == 1) writer.record(RankEnd{.rank = rank, .how = "raised", .ended_ns = at});
  }
  {
    Writer launcher(folder.path(), {.world_size = 4, .kind = "launcher"});
    for (const int rank : {0, 1, 3})
      launcher.record(RankEnd{.rank = rank, .how = "stopped", .ended_ns = 6});
  }
  std::map<std::int64_t, std::string> how;
  for (const auto& end : read(folder.path()).ends) how[end.rank] = end.how;
  EXPECT_EQ(how,
            (std::map<std::int64_t, std::string>{{0, "stopped"}, {1, "raised"}, {3, "stopped"}}));
}

// As one that takes SIGHUP for something else.
TEST(TraceFormat, ARankThatTrainedOnAfterItWasToldToEndWasNotEndedByThat) {
  const TemporaryFolder folder("lockstep-trace");
  for (int rank = 0; rank < 4; ++rank) {
    Writer writer(folder.path(), {.rank = rank, .world_size = 4});
    writer.record(Loss{});
    writer.set_step(rank < 2 ? 0 : 1);  // one that was under way says nothing
    writer.record(Loss{});
    if (rank % 2 == 1) writer.record(RankEnd{.rank = rank, .how = "raised", .ended_ns = 7});
  }
  {
    Writer launcher(folder.path(), {.world_size = 4, .kind = "launcher"});
    for (int rank = 0; rank < 4; ++rank)
      launcher.record(RankEnd{.rank = rank, .how = "stopped", .ended_ns = 6});
  }
  const auto ends = read(folder.path()).ends;
  ASSERT_EQ(ends.size(), 4u);
  for (const int rank : {0, 1, 2}) EXPECT_EQ(ends[rank].how, "stopped") << rank;
  for (const int rank : {0, 1}) EXPECT_EQ(ends[rank].ended_ns, 6) << rank;
  EXPECT_GT(ends[2].ended_ns, 1'000'000'000) << "with its launcher";
  EXPECT_EQ(ends[3].how, "raised");
}

// Each machine's clock begins at its boot.
TEST(TraceFormat, TimesOfAnotherMachineAreMovedByItsWallClock) {
  const TemporaryFolder folder("lockstep-trace");
  for (int rank = 0; rank < 2; ++rank) {
    Writer writer(folder.path(), {.rank = rank, .world_size = 2});
    writer.leave(writer.enter({.sequence = 1, .group = "0", .op = "broadcast"}), false);
    writer.enter({.sequence = 2, .group = "0", .op = "broadcast"});
  }
  const auto before = read(folder.path());
  // Rank 1's machine was started an hour later: its clock is an hour behind.
  constexpr std::int64_t kHour = 3'600'000'000'000;
  const auto file = folder.path() / "rank_1.trace";
  auto bytes = lockstep::read_file(file);
  std::int64_t started = 0;
  std::memcpy(&started, bytes.data() + 48, sizeof started);
  started -= kHour;
  std::memcpy(bytes.data() + 48, &started, sizeof started);
  write_file(file, bytes);
  const auto after = read(folder.path());
  const auto calls = before.ranks[1].all<Collective>(), moved = after.ranks[1].all<Collective>();
  ASSERT_EQ(moved.size(), 2u);
  EXPECT_EQ(after.ranks[0].events[0].time_ns, before.ranks[0].events[0].time_ns);
  EXPECT_NEAR(double(moved[0].time_ns - calls[0].time_ns), double(kHour), 1e9);
  EXPECT_EQ(moved[0].left_ns - moved[0].time_ns, calls[0].left_ns - calls[0].time_ns);
  EXPECT_EQ(moved[1].left_ns, 0) << "still inside";
}

// The layout as trace.md has it, by hand: a file of version 1 must stay readable.
TEST(TraceFormat, LayoutIsTheDocumentedOne) {
  const TemporaryFolder folder("lockstep-trace");
  const auto file = folder.path() / "rank_1.trace";
  Writer writer(folder.path(), {.rank = 1, .world_size = 3, .kind = "process"});
  writer.set_step(7);
  writer.record(Forward{true});
  const auto handle = writer.enter({.sequence = 9,
                                    .group = "default_pg",
                                    .op = "allreduce",
                                    .reduce_op = "sum",
                                    .dtype = "float32",
                                    .sizes = {10, 20}});
  const auto before = monotonic_ns();
  writer.leave(handle, true);
  const auto bytes = lockstep::read_file(file);

  EXPECT_EQ(bytes.substr(0, 8), "LKSTRACE");
  EXPECT_EQ(at<std::uint32_t>(bytes, 8), 1u);
  EXPECT_EQ(at<std::uint32_t>(bytes, 12), 0x01020304u);
  EXPECT_EQ(at<std::int32_t>(bytes, 16), 1);
  EXPECT_EQ(at<std::int32_t>(bytes, 20), 3);
  EXPECT_EQ(bytes.substr(24, 16), std::string("process\0\0\0\0\0\0\0\0\0", 16));
  EXPECT_EQ(at<std::int64_t>(bytes, 40), getpid());
  EXPECT_EQ(at<std::uint64_t>(bytes, 64), 4096u + 32 + 128) << "committed length";
  EXPECT_EQ(at<std::uint64_t>(bytes, 72), 0u) << "closed";
  EXPECT_EQ(at<std::uint64_t>(bytes, 80), 1u) << "entered";
  EXPECT_EQ(at<std::uint64_t>(bytes, 88), 1u) << "left";
  for (std::size_t place = 0; place < 64; ++place)
    EXPECT_EQ(at<std::uint64_t>(bytes, 96 + 8 * place), 0u);
  EXPECT_EQ(at<std::uint64_t>(bytes, 608), 0u) << "truncated";

  const auto forward = bytes.substr(4096, 32);
  EXPECT_EQ(at<std::uint32_t>(forward, 0), 32u);
  EXPECT_EQ(at<std::uint16_t>(forward, 4), 10u) << "forward is the tenth kind, from 0";
  EXPECT_EQ(at<std::int64_t>(forward, 16), 7) << "step";
  EXPECT_EQ(at<std::int64_t>(forward, 24), 1) << "a bool takes 8 bytes";

  const auto collective = bytes.substr(4096 + 32, 128);
  EXPECT_EQ(at<std::uint32_t>(collective, 0), 128u);
  EXPECT_EQ(at<std::uint16_t>(collective, 4), 18u);
  EXPECT_GE(at<std::int64_t>(collective, 24), before) << "left_ns";
  EXPECT_EQ(at<std::int64_t>(collective, 32), 1) << "failed";
  EXPECT_EQ(at<std::int64_t>(collective, 40), 9) << "sequence";
  std::string fields("\x0a\0\0\0default_pg\x09\0\0\0allreduce\x03\0\0\0sum", 34);
  fields += std::string(8, '\xff') + std::string("\x07\0\0\0float32\x02\0\0\0", 15);
  fields += std::string("\x0a\0\0\0\0\0\0\0\x14\0\0\0\0\0\0\0", 16) + std::string(7, '\0');
  EXPECT_EQ(collective.substr(48), fields);
}

std::filesystem::path write_json(const std::filesystem::path& file, const nlohmann::json& json) {
  lockstep::write_file(file, json.dump());
  return file;
}

Trace random_trace(int rounds) {
  const TemporaryFolder folder("lockstep-trace");
  test::RandomFields fields(7);
  for (int rank = 0; rank < 2; ++rank) {
    Writer writer(folder.path(), {.rank = rank, .world_size = 2});
    for (int round = 0; round < rounds; ++round)
      for (std::size_t kind = 0; kind < kKinds; ++kind) writer.record(random_payload(kind, fields));
  }
  return read(folder.path());
}

TEST(TraceJson, SaysWhatTheTraceSays) {
  Trace trace;
  trace.world_size = 2;
  Summary summary{0xffffffffffffffff, std::nan(""), {1.5, 0, 0, -2}};
  trace.ranks.push_back({{1, 2, "process"}, true, {{5, 3, Buffers{{"mean \xff"}, {summary}}}}});
  const auto json = nlohmann::json::parse(to_json(trace));
  EXPECT_EQ(json.at("schema_version"), 1);
  EXPECT_EQ(json.at("world_size"), 2);
  const auto& rank = json.at("ranks").at(0);
  EXPECT_EQ(rank.at("rank"), 1);
  EXPECT_EQ(rank.at("closed"), true);
  const auto& event = rank.at("events").at(0);
  EXPECT_EQ(event.at("event"), "buffers");
  EXPECT_EQ(event.at("time_ns"), 5);
  EXPECT_EQ(event.at("step"), 3);
  EXPECT_EQ(event.at("fields").at("names").at(0), "mean \xef\xbf\xbd");
  const auto& value = event.at("fields").at("values").at(0);
  EXPECT_EQ(value.at("hash"), "ffffffffffffffff");
  EXPECT_TRUE(value.at("norm").is_null());
  EXPECT_EQ(value.at("sketch"), nlohmann::json({1.5, 0.0, 0.0, -2.0}));
}

// The example in trace.md.
nlohmann::json documented_example() {
  const auto page = lockstep::read_file(testing::in_checkout("common/lockstep/trace/trace.md"));
  const std::string fence = "```json\n";
  const auto begin = page.find(fence) + fence.size();
  return nlohmann::json::parse(page.substr(begin, page.find("```", begin) - begin));
}

// The schema accepts every event, and refuses what is none.
TEST(TraceJson, FitsItsSchema) {
  if (testing::python().empty()) GTEST_SKIP() << "no Python with jsonschema was configured";
  const TemporaryFolder folder("lockstep-trace");
  const auto good = nlohmann::json::parse(to_json(random_trace(10)));
  const auto small = nlohmann::json::parse(to_json(random_trace(1)));
  std::vector<nlohmann::json> bad(7, small);
  auto first = [](nlohmann::json& json, const std::string& kind) -> nlohmann::json& {
    for (auto& event : json["ranks"][0]["events"])
      if (event["event"] == kind) return event["fields"];
    throw std::runtime_error("no " + kind);
  };
  first(bad[0], "set_epoch")["called"] = false;         // a verdict
  first(bad[1], "dataset")["ids_in_order"] = "0x12";    // not a hash
  first(bad[2], "collective").erase("left_ns");         // a field short
  first(bad[3], "forward")["training"] = "yes";         // of another type
  bad[4]["ranks"][0]["events"][0]["event"] = "rumour";  // of no kind
  bad[5]["ranks"][1].erase("closed");
  bad[6]["schema_version"] = 2;

  const auto accepted = testing::validate(
      "trace", {write_json(folder.path() / "good.json", good),
                write_json(folder.path() / "small.json", small),
                write_json(folder.path() / "documented.json", documented_example())});
  EXPECT_EQ(accepted.exit_code, 0) << accepted.out << accepted.err;
  std::vector<std::filesystem::path> files;
  for (std::size_t i = 0; i < bad.size(); ++i)
    files.push_back(write_json(folder.path() / ("bad" + std::to_string(i) + ".json"), bad[i]));
  const auto refused = testing::validate("trace", files);
  EXPECT_EQ(refused.exit_code, 1) << refused.err;
  for (std::size_t i = 0; i < bad.size(); ++i)
    EXPECT_THAT(refused.out, ::testing::HasSubstr("bad" + std::to_string(i) + ".json"));
}

}  // namespace
}  // namespace lockstep::trace
