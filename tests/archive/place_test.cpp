// Where a save goes: through a symbolic link to what it points to; and beside others' saves into the
// same folder, whose cleaning up is no reason to refuse it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <thread>

#include "files.h"
#include "systems.h"

namespace lockstep::archive {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Place : public ::testing::Test {
 protected:
  void save(const fs::path& path, const std::string& bytes, System& system = quick_system()) {
    NewFile file(path, {.system = &system});
    file.append(bytes);
    file.commit();
    remove_leftovers(file.path().parent_path(), system);
  }
  std::set<std::string> names(const fs::path& folder) {
    std::set<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder))
      all.insert(entry.path().filename().string());
    return all;
  }

  TemporaryFolder folder_{"lockstep-place"};
  fs::path here_ = folder_.path() / "here", there_ = folder_.path() / "there";
  fs::path link_ = here_ / "x.pt";

  void SetUp() override {
    fs::create_directories(here_);
    fs::create_directories(there_);
  }
};

TEST_F(Place, ALinkStaysAndItsTargetIsWritten) {
  write_file(there_ / "model.pt", "older");
  fs::create_symlink("../there/model.pt", link_);
  save(link_, "newer");
  EXPECT_TRUE(fs::is_symlink(link_));
  EXPECT_EQ(read_file(there_ / "model.pt"), "newer");
  EXPECT_EQ(names(here_), std::set<std::string>{"x.pt"});
  EXPECT_EQ(names(there_), std::set<std::string>{"model.pt"});
  // A link to a link, by way of a folder that is one.
  fs::create_directory_symlink(here_, folder_.path() / "alias");
  fs::create_symlink(folder_.path() / "alias" / "x.pt", there_ / "y.pt");
  save(there_ / "y.pt", "newest");
  EXPECT_EQ(read_file(there_ / "model.pt"), "newest");
  EXPECT_EQ(names(there_), (std::set<std::string>{"model.pt", "y.pt"}));
}

TEST_F(Place, ADanglingLinksTargetIsMade) {
  fs::create_symlink(there_ / "model.pt", link_);
  save(link_, "first");
  EXPECT_TRUE(fs::is_symlink(link_));
  EXPECT_EQ(read_file(there_ / "model.pt"), "first");
  // As for any path, missing folders are made.
  fs::create_symlink(there_ / "a" / "b" / "model.pt", here_ / "y.pt");
  save(here_ / "y.pt", "second");
  EXPECT_EQ(read_file(there_ / "a" / "b" / "model.pt"), "second");
}

TEST_F(Place, LinksThatLeadNowhere) {
  fs::create_symlink("x.pt", link_);
  EXPECT_THAT(refusal([&] { save(link_, "x"); }),
              AllOf(HasSubstr(link_.string()), HasSubstr("links"), HasSubstr("one another")));
  fs::create_symlink("/proc/no/x.pt", here_ / "y.pt");
  EXPECT_THAT(refusal([&] { save(here_ / "y.pt", "y"); }),
              AllOf(HasSubstr("cannot save /proc/no/x.pt"), HasSubstr("cannot be made")));
  fs::create_symlink(there_ / "", here_ / "z.pt");
  EXPECT_THAT(refusal([&] { save(here_ / "z.pt", "z"); }), HasSubstr("no file's name"));
  EXPECT_EQ(names(here_), (std::set<std::string>{"x.pt", "y.pt", "z.pt"}));
}

// Two names of one file are one place.
TEST_F(Place, ALinkAndItsTargetAreSavedOneAtATime) {
  fs::create_symlink(there_ / "model.pt", link_);
  const NewFile first(there_ / "model.pt");
  EXPECT_THAT(refusal([&] { NewFile second(link_); }),
              AllOf(HasSubstr((there_ / "model.pt").string()), HasSubstr("being saved already")));
}

// The cleaning up of a save to another file: it finds a temporary between its writer's open and flock,
// takes it for a leftover, and locks it to remove it.
class SweptMeanwhile : public QuickSystem {
 public:
  SweptMeanwhile(fs::path temporary, bool removes)
      : temporary_(std::move(temporary)), removes_(removes) {}
  int flock(int fd, int operation) override {
    ++attempts;
    if (attempts == 1) {
      sweeper_ = ::open(temporary_.c_str(), O_RDWR);
      EXPECT_EQ(::flock(sweeper_, LOCK_EX | LOCK_NB), 0);
    }
    if (attempts == 4) {
      if (removes_) ::unlink(temporary_.c_str());
      ::close(sweeper_);
    }
    return System::flock(fd, operation);
  }
  int attempts = 0;

 private:
  fs::path temporary_;
  bool removes_;
  int sweeper_ = -1;
};

TEST_F(Place, ASweepersLockIsWaitedFor) {
  for (const bool removes : {true, false}) {
    SweptMeanwhile system(here_ / ".x.pt.lockstep-saving", removes);
    EXPECT_EQ(refusal([&] { save(here_ / "x.pt", "bytes", system); }), "");
    EXPECT_EQ(read_file(here_ / "x.pt"), "bytes");
    EXPECT_EQ(names(here_), std::set<std::string>{"x.pt"});
    EXPECT_GE(system.attempts, 4);
    fs::remove(here_ / "x.pt");
  }
}

TEST_F(Place, RanksThatSaveDifferentFilesIntoOneFolder) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      const auto name = "rank_" + std::to_string(rank) + ".pt";
      for (int round = 0; round < 200; ++round) {
        EXPECT_EQ(refusal([&] { save(here_ / name, name + std::to_string(round)); }), "");
        EXPECT_EQ(read_file(here_ / name), name + std::to_string(round));
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(names(here_).size(), 4u);
}

}  // namespace
}  // namespace lockstep::archive
