// Traces that an earlier build wrote, kept in old_traces/: version 1 is read as it was then. every_kind holds one event
// of each kind of that day, and events.json what it says; the others are whole runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/trace/attempts.h>
#include <lockstep/trace/json.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "expect.h"

namespace lockstep::simulated {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kOld = LOCKSTEP_OLD_TRACES;
const fs::path kEveryKind = kOld / "every_kind" / "rank_0.trace";

// Each field by its name: fields that changed places, or kinds that did, are found.
TEST(OldTrace, EveryKindSaysWhatItSaid) {
  const auto said = nlohmann::json::parse(read_file(kOld / "every_kind" / "events.json"));
  const auto read = nlohmann::json::parse(trace::to_json(trace::read(kEveryKind.parent_path())));
  const auto& events = read.at("ranks").at(0).at("events");
  ASSERT_EQ(events.size(), said.size());
  for (std::size_t kind = 0; kind < said.size(); ++kind)
    EXPECT_EQ(events[kind], said[kind]) << "kind " << kind;
}

TEST(OldTrace, ASilentFaultHasItsName) {
  const auto trace = trace::read_job(kOld / "no_initial_broadcast");
  EXPECT_TRUE(trace.ranks.at(0).closed);
  EXPECT_EQ(trace.ends.at(1).how, "completed");
  expect_only(trace, "no-initial-broadcast", {0, 1}, -1);
}

TEST(OldTrace, ACrashHasItsName) {
  const auto trace = trace::read_job(kOld / "module_prefix");
  EXPECT_EQ(trace.ends.at(1).how, "raised");
  expect_only(trace, "module-prefix", {0, 1}, 6);
}

// The other way round: this program meets the first kind that it does not know (trace.md, "Changing it").
TEST(OldTrace, OfANewerProgramIsRefusedByTheKindsNumber) {
  auto bytes = read_file(kEveryKind);
  std::size_t last = 4096;
  for (std::uint32_t size = 0;; last += size) {
    std::memcpy(&size, bytes.data() + last, sizeof size);
    if (last + size == bytes.size()) break;
  }
  const std::uint16_t next = std::variant_size_v<trace::Payload>;
  std::memcpy(bytes.data() + last + 4, &next, sizeof next);
  const TemporaryFolder folder("lockstep-newer");
  write_file(folder.path() / "rank_0.trace", bytes);
  try {
    trace::read(folder.path());
    FAIL() << "events were left out unseen";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank_0.trace, offset " + std::to_string(last)),
                                    HasSubstr("unknown kind " + std::to_string(next))));
  }
}

}  // namespace
}  // namespace lockstep::simulated
