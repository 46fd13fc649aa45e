// A folder of checkpoints: `latest` is a whole one, whatever happens; the newest few are kept; one job
// saves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/archive/checkpoint_folder.h>
#include <sys/wait.h>

#include "files.h"
#include "systems.h"

namespace lockstep::archive {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Checkpoints : public ::testing::Test {
 protected:
  fs::path save(CheckpointFolder& folder, std::int64_t number) {
    return folder.save(number, [&](NewFile& file) {
      ArchiveWriter writer(file);
      writer.value(FileValue::Dict{{"number", number}});
      writer.finish();
    });
  }
  void save(std::int64_t number, System& system = quick_system(), int keep = 2) {
    CheckpointFolder folder(place_, {.keep = keep, .system = &system});
    save(folder, number);
  }
  // The number of the checkpoint that latest() gives; throws where it is not whole.
  std::int64_t latest() {
    const auto path = CheckpointFolder(place_).latest();
    if (!path) return -1;
    const FileSource source(*path);
    return ArchiveReader(source).value().at("number").as_int();
  }
  std::vector<std::string> names() {
    std::vector<std::string> all;
    for (const auto& path : CheckpointFolder(place_).all()) all.push_back(path.filename().string());
    return all;
  }
  // Nothing but checkpoints, the pointer and the lock.
  void expect_clean() {
    for (const auto& entry : fs::directory_iterator(place_)) {
      const auto name = entry.path().filename().string();
      EXPECT_TRUE(name == "latest" || name == ".lock" || name.starts_with("checkpoint_")) << name;
    }
  }
  TemporaryFolder folder_{"lockstep-checkpoints"};
  fs::path place_ = folder_.path() / "run";
};

TEST_F(Checkpoints, KeepsTheNewestAndPointsAtTheLast) {
  EXPECT_EQ(latest(), -1);
  EXPECT_FALSE(fs::exists(place_)) << "reading makes nothing";
  CheckpointFolder folder(place_, {.keep = 2});
  for (const std::int64_t number : {0, 1, 9, 10, 100}) {
    EXPECT_EQ(save(folder, number).filename().string(),
              "checkpoint_" + std::to_string(number) + ".pt");
    EXPECT_EQ(latest(), number);
  }
  EXPECT_THAT(names(), ElementsAre("checkpoint_10.pt", "checkpoint_100.pt"));
  expect_clean();
}

TEST_F(Checkpoints, KeepsAllWhenAsked) {
  for (int number = 0; number < 5; ++number) save(number, quick_system(), /*keep=*/0);
  EXPECT_EQ(names().size(), 5u);
}

// Going on from an older checkpoint: those with higher numbers are of the run that was given up. They
// would be taken for newer ones, and crowd out what is saved from there on.
TEST_F(Checkpoints, ARestartFromAnOlderOne) {
  for (const std::int64_t number : {7, 8, 9}) save(number);
  save(3);
  EXPECT_EQ(latest(), 3);
  EXPECT_THAT(names(), ElementsAre("checkpoint_3.pt"));
}

TEST_F(Checkpoints, ThreeSavesAfterARollback) {
  CheckpointFolder folder(place_, {.keep = 3, .system = &quick_system()});
  for (const std::int64_t number : {6, 7, 8, 9}) save(folder, number);
  EXPECT_THAT(names(), ElementsAre("checkpoint_7.pt", "checkpoint_8.pt", "checkpoint_9.pt"));
  for (const std::int64_t number : {3, 4, 5}) {
    save(folder, number);
    EXPECT_EQ(latest(), number);
  }
  EXPECT_THAT(names(), ElementsAre("checkpoint_3.pt", "checkpoint_4.pt", "checkpoint_5.pt"));
  fs::remove(place_ / "latest");
  EXPECT_EQ(latest(), 5) << "not one of the run that was given up";
}

TEST_F(Checkpoints, ARollbackToOneThatIsSavedAgain) {
  for (const std::int64_t number : {7, 8, 9}) save(number, quick_system(), /*keep=*/3);
  save(8, quick_system(), /*keep=*/3);
  EXPECT_THAT(names(), ElementsAre("checkpoint_7.pt", "checkpoint_8.pt"));
  EXPECT_EQ(latest(), 8);
}

TEST_F(Checkpoints, KeepingAllKeepsWhatWasGivenUp) {
  for (const std::int64_t number : {7, 8, 3}) save(number, quick_system(), /*keep=*/0);
  EXPECT_EQ(latest(), 3);
  EXPECT_EQ(names().size(), 3u);
}

// Made by hand, or by a program that marks the newest so: it is replaced, not what it points to.
TEST_F(Checkpoints, APointerThatIsALink) {
  save(1);
  fs::remove(place_ / "latest");
  fs::create_symlink("checkpoint_1.pt", place_ / "latest");
  save(2);
  EXPECT_EQ(latest(), 2);
  write_file(place_ / "latest", "checkpoint_1.pt");
  EXPECT_EQ(latest(), 1) << "still whole";
}

TEST_F(Checkpoints, PointerLostOrWrong) {
  for (const std::int64_t number : {9, 10}) save(number);
  write_file(place_ / "latest", "checkpoint_9.pt");
  EXPECT_EQ(latest(), 9);
  for (const char* name : {"checkpoint_8.pt", "../secret", "/etc/passwd", "", "latest"}) {
    write_file(place_ / "latest", name);
    EXPECT_THAT(refusal([&] { latest(); }),
                AllOf(HasSubstr((place_ / "latest").string()), HasSubstr("points at")));
  }
  fs::remove(place_ / "latest");
  EXPECT_EQ(latest(), 10);
}

TEST_F(Checkpoints, OneJobSaves) {
  CheckpointFolder first(place_);
  save(first, 1);
  CheckpointFolder second(place_);
  EXPECT_THAT(refusal([&] { save(second, 2); }),
              AllOf(HasSubstr(place_.string()), HasSubstr("another job saves there")));
  EXPECT_EQ(second.latest(), place_ / "checkpoint_1.pt") << "reading needs no lock";
  const pid_t child = fork();
  if (child == 0) {
    CheckpointFolder third(place_);
    _exit(refusal([&] { save(third, 3); }).empty() ? 0 : 7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  save(first, 4);
  EXPECT_EQ(latest(), 4);
}

TEST_F(Checkpoints, BadArguments) {
  EXPECT_THAT(refusal([&] { CheckpointFolder(place_, {.keep = -1}); }), HasSubstr("found -1"));
  EXPECT_THAT(refusal([&] { save(-1); }), HasSubstr("found -1"));
}

// Four of five saves succeed, keeping one; the fifth meets its fate in every call.
class CheckpointsUnderFaults : public Checkpoints {
 protected:
  void prepare() {
    fs::remove_all(place_);
    for (const std::int64_t number : {1, 2, 3, 4}) save(number, quick_system(), /*keep=*/1);
  }
  std::size_t calls_of_a_save() {
    prepare();
    WatchedSystem system;
    save(5, system, 1);
    EXPECT_EQ(std::count(system.calls.begin(), system.calls.end(), "unlink"), 1);
    return system.calls.size();
  }
};

TEST_F(CheckpointsUnderFaults, EveryFailingCall) {
  const auto count = calls_of_a_save();
  for (std::size_t at = 0; at < count; ++at) {
    prepare();
    FailingSystem system(at, EIO);
    const auto text = refusal([&] { save(5, system, 1); });
    SCOPED_TRACE(system.calls.at(at) + ", call " + std::to_string(at) + ": " + text);
    if (text.empty()) {
      EXPECT_EQ(latest(), 5);
    } else {
      EXPECT_THAT(text, AllOf(HasSubstr(place_.string()), HasSubstr("Input/output error")));
      EXPECT_GE(latest(), 4);
    }
    save(6, quick_system(), 1);
    EXPECT_EQ(latest(), 6);
    expect_clean();
  }
}

TEST_F(CheckpointsUnderFaults, KilledInAnyCall) {
  const auto count = calls_of_a_save();
  std::set<std::int64_t> seen;
  for (const bool after : {false, true}) {
    for (std::size_t at = 0; at < count; ++at) {
      prepare();
      ASSERT_TRUE(dies_in_call(at, after, [&](System& system) { save(5, system, 1); }));
      seen.insert(latest());
      EXPECT_LE(names().size(), 2u);
      save(6, quick_system(), 1);
      EXPECT_EQ(latest(), 6);
      EXPECT_EQ(names().size(), 1u);
      expect_clean();
    }
  }
  EXPECT_EQ(seen, (std::set<std::int64_t>{4, 5}));
}

TEST_F(CheckpointsUnderFaults, PowerCutInAnyCall) {
  const auto count = calls_of_a_save();
  for (const bool names_too : {false, true}) {
    for (std::size_t at = 0; at <= count; ++at) {
      prepare();
      ForgetfulSystem system(at);
      refusal([&] { save(5, system, 1); });
      system.lose(place_, names_too);
      const auto now = latest();
      EXPECT_TRUE(system.cut() ? now == 4 || now == 5 : now == 5)
          << "call " << at << " gives " << now;
    }
  }
}

// A save of a lower number, after which the three higher ones go: never before `latest` points at it.
class RollbackUnderFaults : public Checkpoints {
 protected:
  void prepare() {
    fs::remove_all(place_);
    for (const std::int64_t number : {7, 8, 9}) save(number, quick_system(), /*keep=*/3);
  }
  std::size_t calls_of_a_save() {
    prepare();
    WatchedSystem system;
    save(3, system, 3);
    EXPECT_EQ(std::count(system.calls.begin(), system.calls.end(), "unlink"), 3);
    return system.calls.size();
  }
  // latest() throws where it is not whole.
  void expect_whole() {
    const auto now = latest();
    EXPECT_TRUE(now == 3 || now == 9) << now;
    if (now == 9) EXPECT_GE(names().size(), 3u) << "removed too early";
    seen_.insert(now);
    save(4, quick_system(), 3);
    EXPECT_EQ(latest(), 4);
    EXPECT_LE(names().size(), 2u);
    EXPECT_EQ(names().back(), "checkpoint_4.pt");
    expect_clean();
  }
  std::set<std::int64_t> seen_;
};

TEST_F(RollbackUnderFaults, KilledInAnyCall) {
  const auto count = calls_of_a_save();
  for (const bool after : {false, true}) {
    for (std::size_t at = 0; at < count; ++at) {
      SCOPED_TRACE("call " + std::to_string(at));
      prepare();
      ASSERT_TRUE(dies_in_call(at, after, [&](System& system) { save(3, system, 3); }));
      expect_whole();
    }
  }
  EXPECT_EQ(seen_, (std::set<std::int64_t>{3, 9}));
}

TEST_F(RollbackUnderFaults, FailureOrPowerCutInAnyCall) {
  const auto count = calls_of_a_save();
  for (std::size_t at = 0; at < count; ++at) {
    SCOPED_TRACE("call " + std::to_string(at));
    prepare();
    FailingSystem failing(at, EIO);
    const auto text = refusal([&] { save(3, failing, 3); });
    if (text.empty()) {
      EXPECT_EQ(latest(), 3);
    } else {
      EXPECT_THAT(text, AllOf(HasSubstr(place_.string()), HasSubstr("Input/output error")));
    }
    expect_whole();
    for (const bool names_too : {false, true}) {
      prepare();
      ForgetfulSystem forgetful(at);
      refusal([&] { save(3, forgetful, 3); });
      forgetful.lose(place_, names_too);
      expect_whole();
    }
  }
}

}  // namespace
}  // namespace lockstep::archive
