// One file: every system call of a save fails, or is where the process or the power dies, and the
// place holds the older file or the newer one, whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "files.h"
#include "systems.h"

namespace lockstep::archive {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Saving : public ::testing::Test {
 protected:
  void save(int number, System& system = quick_system(), bool sync = true) {
    NewFile file(path_, {.sync = sync, .system = &system});
    ArchiveWriter writer(file);
    writer.value(FileValue::Dict{{"number", number}, {"tensor", small_tensor()}});
    writer.storage("0", std::string(24, static_cast<char>('0' + number)));
    writer.finish();
    file.commit();
    remove_leftovers(folder_.path(), system);
  }
  // Which save the file is of; throws Error where it is not whole.
  int saved() {
    const FileSource source(path_);
    const ArchiveReader reader(source);
    std::string bytes(24, '\0');
    reader.read(small_tensor().storage, bytes.data());
    const auto number = static_cast<int>(reader.value().at("number").as_int());
    EXPECT_EQ(bytes, std::string(24, static_cast<char>('0' + number)));
    return number;
  }
  std::set<std::string> names() {
    std::set<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_.path()))
      all.insert(entry.path().filename().string());
    return all;
  }
  std::size_t calls_of_a_save(bool sync = true) {
    WatchedSystem system;
    save(0, system, sync);
    return system.calls.size();
  }
  fs::path temporary() { return folder_.path() / ".x.pt.lockstep-saving"; }

  TemporaryFolder folder_{"lockstep-saving"};
  fs::path path_ = folder_.path() / "x.pt";
};

TEST_F(Saving, MakesFoldersAndLeavesNothingElse) {
  path_ = folder_.path() / "a b" / "c'd" / "x.pt";
  save(1, real_system());
  EXPECT_EQ(saved(), 1);
  save(2);
  EXPECT_EQ(saved(), 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(path_.parent_path()), {}), 1);
}

TEST_F(Saving, SyncsBeforeAndAfterTheRename) {
  WatchedSystem system;
  save(1, system);
  std::string order;
  for (const auto& call : system.calls)
    if (call == "write" || call == "fsync" || call == "rename") order += call[0];
  EXPECT_THAT(order, ::testing::MatchesRegex("w+frf"));
  WatchedSystem hasty;
  save(1, hasty, /*sync=*/false);
  EXPECT_EQ(std::count(hasty.calls.begin(), hasty.calls.end(), "fsync"), 0);
}

TEST_F(Saving, EveryFailingCallIsNamedAndHarmless) {
  const auto count = calls_of_a_save();
  ASSERT_GT(count, 20u);
  for (const int error : {EIO, ENOSPC}) {
    for (const bool all_after : {false, true}) {
      for (std::size_t at = 0; at < count; ++at) {
        save(1);
        FailingSystem system(at, error, all_after);
        const auto text = refusal([&] { save(2, system); });
        const auto& call = system.calls.at(at);
        SCOPED_TRACE(call + ", call " + std::to_string(at) + ": " + text);
        const int now = saved();
        if (text.empty()) {
          EXPECT_EQ(now, 2) << "no error means saved";
        } else {
          EXPECT_THAT(text, AllOf(HasSubstr(path_.string()), HasSubstr(std::strerror(error))));
          // The last sync may fail when the new file is in its place: the text says so.
          EXPECT_EQ(now, text.starts_with("saved") ? 2 : 1);
        }
        save(3);  // goes on, and cleans up
        EXPECT_EQ(saved(), 3);
        EXPECT_EQ(names(), std::set<std::string>{"x.pt"});
      }
    }
  }
}

// What must not be taken for granted: these calls' failures are errors.
TEST_F(Saving, FailuresAreNotSwallowed) {
  const auto count = calls_of_a_save();
  std::set<std::string> reported;
  for (std::size_t at = 0; at < count; ++at) {
    FailingSystem system(at, EIO);
    if (!refusal([&] { save(2, system); }).empty()) reported.insert(system.calls.at(at));
  }
  EXPECT_THAT(reported,
              ::testing::IsSupersetOf({"open", "stat", "ftruncate", "write", "fsync", "rename"}));
  // Without a sync, a network file system may report what it could not write as late as in close.
  std::size_t closes = 0;
  for (std::size_t at = 0; at < calls_of_a_save(false); ++at) {
    FailingSystem system(at, EIO);
    if (!refusal([&] { save(2, system, false); }).empty()) closes += system.calls.at(at) == "close";
  }
  EXPECT_EQ(closes, 1u);
}

TEST_F(Saving, KilledInAnyCall) {
  const auto count = calls_of_a_save();
  std::size_t leftovers = 0;
  std::set<int> seen;
  for (const bool after : {false, true}) {
    for (std::size_t at = 0; at < count; ++at) {
      save(1);
      ASSERT_TRUE(dies_in_call(at, after, [&](System& system) { save(2, system); }))
          << "call " << at;
      seen.insert(saved());
      leftovers += names().size() - 1;
      save(3);
      EXPECT_EQ(saved(), 3);
      EXPECT_EQ(names(), std::set<std::string>{"x.pt"}) << "call " << at;
    }
  }
  EXPECT_EQ(seen, (std::set<int>{1, 2}));
  EXPECT_GT(leftovers, 10u);
}

TEST_F(Saving, PowerCutInAnyCall) {
  const auto count = calls_of_a_save();
  for (const bool names_too : {false, true}) {
    for (std::size_t at = 0; at <= count; ++at) {
      save(1);
      ForgetfulSystem system(at);
      refusal([&] { save(2, system); });
      system.lose(folder_.path(), names_too);
      const int now = saved();
      EXPECT_TRUE(system.cut() ? now == 1 || now == 2 : now == 2)
          << "call " << at << " holds " << now;
    }
  }
}

// That this test can see a fault: without the syncs it does.
TEST_F(Saving, PowerCutWithoutSyncMayLoseTheFile) {
  std::size_t lost = 0;
  for (std::size_t at = 0; at <= calls_of_a_save(false); ++at) {
    save(1);
    ForgetfulSystem system(at);
    refusal([&] { save(2, system, /*sync=*/false); });
    system.lose(folder_.path(), false);
    lost += !refusal([&] { saved(); }).empty();
  }
  EXPECT_GT(lost, 0u);
}

TEST_F(Saving, FullDiskAndShortWrites) {
  class ShortWrites : public System {
    ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) override {
      if (++calls_ % 3 == 0) {
        errno = EINTR;
        return -1;
      }
      return System::pwrite(fd, bytes, std::min<size_t>(size, 7), offset);
    }
    int calls_ = 0;
  } short_writes;
  save(1, short_writes);
  EXPECT_EQ(saved(), 1);

  rlimit usual{};
  getrlimit(RLIMIT_FSIZE, &usual);
  rlimit small = usual;
  small.rlim_cur = 500;
  const auto before = signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const auto text = refusal([&] { save(2); });
  setrlimit(RLIMIT_FSIZE, &usual);
  signal(SIGXFSZ, before);
  EXPECT_THAT(text, AllOf(HasSubstr(path_.string()), HasSubstr("File too large")));
  EXPECT_EQ(saved(), 1);
  EXPECT_EQ(names(), std::set<std::string>{"x.pt"});
}

TEST_F(Saving, SecondWriterIsRefusedAtOnce) {
  save(1);
  {
    NewFile first(path_);
    EXPECT_THAT(refusal([&] { save(2); }),
                AllOf(HasSubstr(path_.string()), HasSubstr("being saved already")));
    // Another process's leftover is not taken for one.
    EXPECT_EQ(remove_leftovers(folder_.path()), 0);
    const pid_t child = fork();
    if (child == 0) _exit(refusal([&] { save(2); }).empty() ? 0 : 7);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 7);
  }
  EXPECT_EQ(saved(), 1);
  save(2);
  EXPECT_EQ(saved(), 2);
}

// Between opening the temporary and locking it, its writer may finish: then the file that is locked
// is the finished one, and nobody may empty it, nor remove the temporary of the next.
class FinishedMeanwhile : public QuickSystem {
 public:
  explicit FinishedMeanwhile(std::function<void()> meanwhile) : meanwhile_(std::move(meanwhile)) {}
  int flock(int fd, int operation) override {
    if (meanwhile_) std::exchange(meanwhile_, nullptr)();
    return System::flock(fd, operation);
  }

 private:
  std::function<void()> meanwhile_;
};

TEST_F(Saving, ATemporaryThatWasFinishedMeanwhileIsNotTakenOver) {
  auto first = std::make_unique<NewFile>(path_);
  first->append("finished");
  FinishedMeanwhile system([&] {
    first->commit();
    first.reset();
  });
  NewFile second(path_, {.system = &system});
  EXPECT_EQ(read_file(path_), "finished");
  second.append("second");
  second.commit();
  EXPECT_EQ(read_file(path_), "second");
}

TEST_F(Saving, ATemporaryOfTheNextWriterIsNoLeftover) {
  auto first = std::make_unique<NewFile>(path_);
  std::unique_ptr<NewFile> next;
  FinishedMeanwhile system([&] {
    first->commit();
    first.reset();
    next = std::make_unique<NewFile>(path_);
  });
  EXPECT_EQ(remove_leftovers(folder_.path(), system), 0);
  EXPECT_TRUE(fs::exists(temporary()));
  next->commit();
}

// Many writers at once: each save is whole or refused, and the file always is.
TEST_F(Saving, WritersInParallel) {
  save(0);
  std::atomic<int> done = 0, refused = 0;
  std::vector<std::thread> threads;
  for (int i = 1; i < 5; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 100; ++round) {
        const auto text = refusal([&] { save(i, quick_system()); });
        text.empty() ? ++done : ++refused;
        EXPECT_TRUE(text.empty() || text.find("being saved already") != std::string::npos) << text;
        saved();
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(done + refused, 400);
  EXPECT_GT(done, 0);
  EXPECT_EQ(names(), std::set<std::string>{"x.pt"});
}

TEST_F(Saving, LeftoversOfOthersGoToo) {
  write_file(folder_.path() / ".y.pt.lockstep-saving", "of a process long dead");
  write_file(folder_.path() / "y.lockstep-saving", "somebody's");
  write_file(folder_.path() / ".hidden", "somebody's");
  save(1);
  EXPECT_EQ(names(), (std::set<std::string>{"x.pt", "y.lockstep-saving", ".hidden"}));
}

TEST_F(Saving, DoesNotFollowALinkInThePlaceOfItsTemporary) {
  write_file(folder_.path() / "precious", "keep");
  fs::create_symlink(folder_.path() / "precious", temporary());
  EXPECT_THAT(refusal([&] { save(1); }), HasSubstr(temporary().string()));
  EXPECT_EQ(read_file(folder_.path() / "precious"), "keep");
}

// Lustre without -o flock: saves work, and what may be another's temporary stays.
TEST_F(Saving, FileSystemsWithoutLocks) {
  class NoLocks : public System {
    int flock(int, int) override {
      errno = ENOSYS;
      return -1;
    }
  } no_locks;
  write_file(folder_.path() / ".y.pt.lockstep-saving", "whose?");
  save(1, no_locks);
  EXPECT_EQ(saved(), 1);
  EXPECT_EQ(names(), (std::set<std::string>{"x.pt", ".y.pt.lockstep-saving"}));
}

TEST_F(Saving, BadPlaces) {
  EXPECT_THAT(refusal([] { NewFile file("/proc/no/x.pt"); }),
              HasSubstr("its folder cannot be made"));
  EXPECT_THAT(refusal([] { NewFile file("/tmp/"); }), HasSubstr("no file's name"));
  path_ = folder_.path() / "folder.pt";
  fs::create_directories(path_);
  EXPECT_THAT(refusal([&] { save(1); }), AllOf(HasSubstr(path_.string()), HasSubstr("rename")));
}

}  // namespace
}  // namespace lockstep::archive
