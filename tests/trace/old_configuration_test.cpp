// Traces of recorders that said all that is set up as a Configuration are read as if they had said it by today's events.
#include <gtest/gtest.h>
#include <lockstep/base/file.h>
#include <lockstep/trace/reader.h>

#include "events.h"

namespace lockstep::trace {
namespace {

// As it is read back.
std::string read_of(const Configuration& old) {
  const TemporaryFolder folder("lockstep-trace");
  Writer(folder.path(), {}).record(old);
  return test::text_of(read(folder.path()).ranks.at(0).events.at(0).payload);
}

TEST(OldConfiguration, IsReadAsTheEventThatSaysItNow) {
  const std::pair<Configuration, SharedPayload> all[] = {
      {{"statistics", {"buffer 0, parameter 1", "buffer 3, parameter 12"}, {"train", "eval"}},
       LayerModes{{{0, 1, true}, {3, 12, false}}}},
      {{"randomness", {"cpu", "cuda:0"}, {"00000000000000ff", "fedcba9876543210"}},
       RandomState{{"cpu", "cuda:0"}, {0xff, 0xfedcba9876543210}}},
      {{"evaluation", {"samples", "content"}, {"50", "fedcba9876543210"}},
       EvaluationInput{50, 0xfedcba9876543210}},
      {{"workers", {"base_seed"}, {"7fffffffffffffff"}}, Workers{0x7fffffffffffffff}},
      {{"schedules", {"StepLR"}, {"2"}}, ScheduleTwins{"StepLR", 2}},
      {{"untrained", {"[8, 4]", "[]", "[16]"}, {"4", "3", "0"}},
       Untrained{{{{8, 4}, 4}, {{}, 3}, {{16}, 0}}}},
      {{"loaded", {"Net"}, {"its own tensors"}}, OwnTensorsLoaded{"Net"}},
      {{"another model", {}, {}}, AnotherModel{}},
      {{"moving", {"codes in train()"}, {"0.5 1"}}, Moving{{{"codes in train()", "0.5", "1"}}}},
      {{"checkpoint", {"gradient"}, {"none"}}, CheckpointWithoutGradient{}}};
  for (const auto& [old, now] : all) EXPECT_EQ(read_of(old), test::text_of(now)) << old.of;
}

TEST(OldConfiguration, OfSettingsIsReadAsThose) {
  for (const auto* name :
       {"model", "optimizer", "engine", "loader", "loss", "program", "constants", "settings"}) {
    Settings now{SettingsOf::model, {"a", "b"}, {"1", ""}};
    ASSERT_TRUE(from_string(name, now.of));
    EXPECT_EQ(read_of({name, now.keys, now.values}), test::text_of(now)) << name;
  }
}

// As of a recorder that there never was.
TEST(OldConfiguration, OfSomethingElseIsLeftAsItIs) {
  const Configuration other{"rumours", {"key"}, {}};
  EXPECT_EQ(read_of(other), test::text_of(other));
  EXPECT_EQ(read_of({"statistics", {"buffer"}, {}}), test::text_of(LayerModes{}));
}

}  // namespace
}  // namespace lockstep::trace
