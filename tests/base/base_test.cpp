// Files, environment variables, hashes and the clock.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/clock.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/base/hash.h>
#include <lockstep/base/processors.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "../support/refusal.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

int entries(const fs::path& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(File, ReadsBackWhatWasWrittenAndReplacesIt) {
  const TemporaryFolder folder("lockstep-base");
  const fs::path path = folder.path() / "new" / "it's a file";
  const std::string bytes("a\0b\n\xff", 5);
  for (const std::string& text : {bytes, std::string("shorter"), std::string()}) {
    write_file(path, text);
    EXPECT_EQ(read_file(path), text);
    EXPECT_EQ(entries(path.parent_path()), 1) << "a temporary file is left";
  }
}

TEST(File, FailedWriteNamesThePathAndLeavesTheOldFile) {
  const TemporaryFolder folder("lockstep-base");
  const fs::path occupied = folder.path() / "occupied";
  fs::create_directories(occupied / "inside");
  EXPECT_THAT(refusal([&] { write_file(occupied, "text"); }),
              AllOf(HasSubstr("cannot replace"), HasSubstr(occupied.string())));
  EXPECT_EQ(entries(folder.path()), 1) << "a temporary file is left";

  write_file(folder.path() / "file", "old");
  EXPECT_THROW(write_file(folder.path() / "file" / "below", "text"), Error);
  EXPECT_EQ(read_file(folder.path() / "file"), "old");
}

TEST(File, OnlyARegularFileIsReplacedAndNoLinkIsFollowed) {
  const TemporaryFolder folder("lockstep-base");
  const auto other = folder.path() / "other", hard = folder.path() / "hard";
  write_file(other, "somebody's");
  const auto link = folder.path() / "link", dangling = folder.path() / "dangling";
  fs::create_symlink(other, link);
  fs::create_symlink(folder.path() / "none", dangling);
  for (const auto& path : {link, dangling}) {
    EXPECT_THAT(refusal([&] { write_file(path, "text"); }), HasSubstr("it is a link"));
    EXPECT_TRUE(fs::is_symlink(path));
  }
  const auto fifo = folder.path() / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(refusal([&] { write_file(fifo, "text"); }), HasSubstr("no regular file"));
  EXPECT_TRUE(fs::is_fifo(fifo));
  fs::create_hard_link(other, hard);
  write_file(hard, "text");
  EXPECT_EQ(read_file(other), "somebody's");
  EXPECT_EQ(entries(folder.path()), 5) << "a temporary file, or what a link names, is left";
}

TEST(File, OnlyThisUsersOwnIsAddedTo) {
  const TemporaryFolder folder("lockstep-base");
  const auto own = folder.path() / "own", hard = folder.path() / "hard";
  for (const char* text : {"a", "b"}) {
    const int fd = open_own(own);
    ASSERT_EQ(write(fd, text, 1), 1);
    close(fd);
  }
  EXPECT_EQ(read_file(own), "ab");
  const auto link = folder.path() / "link", fifo = folder.path() / "fifo";
  fs::create_symlink(own, link);
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const int reads = open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  for (const auto& path : {link, fifo, folder.path()}) EXPECT_EQ(open_own(path), -1) << path;
  close(reads);
  fs::create_hard_link(own, hard);
  EXPECT_EQ(open_own(hard), -1);
  EXPECT_EQ(open_own(own), -1);
}

TEST(File, MissingFileIsNamedWithTheReason) {
  EXPECT_THAT(refusal([] { read_file("/nowhere/at/all"); }),
              AllOf(HasSubstr("/nowhere/at/all"), HasSubstr("No such file")));
}

TEST(File, TemporaryFolderIsPrivateAndGoes) {
  fs::path path;
  {
    const TemporaryFolder folder("lockstep-base");
    path = folder.path();
    struct stat status {};
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700U);
    write_file(path / "deep" / "file", "text");
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(Environment, IntegersAreStrict) {
  const char* name = "LOCKSTEP_BASE_TEST";
  unsetenv(name);
  EXPECT_FALSE(environment_int(name));
  setenv(name, "", 1);
  EXPECT_FALSE(environment(name));
  setenv(name, "-12", 1);
  EXPECT_EQ(environment_int(name), -12);
  for (const char* bad : {"1x", " 1", "0x10", "1.0", "99999999999", "+1"}) {
    setenv(name, bad, 1);
    EXPECT_THAT(refusal<UsageError>([&] { environment_int(name); }),
                AllOf(HasSubstr(name), HasSubstr(bad)));
  }
  unsetenv(name);
}

TEST(Hash, IsXxh3) {
  EXPECT_EQ(hash_text(""), 0x2d06800538d394c2U);  // the published XXH3_64bits of nothing
  EXPECT_NE(hash_text("lockstep"), hash_text("lockstep", 1));
  EXPECT_NE(hash_text("ab"), hash_text("ba"));
  const std::string text(1000, 'x');
  for (const std::size_t cut : {0, 1, 500, 1000}) {
    Hasher hasher;
    hasher.add(text.data(), cut);
    hasher.add(text.data() + cut, text.size() - cut);
    EXPECT_EQ(hasher.hash(), hash_text(text)) << cut;
  }
}

TEST(Clock, NeverGoesBack) {
  std::int64_t before = monotonic_ns();
  EXPECT_GT(before, 0);
  for (int i = 0; i < 10'000; ++i) {
    const std::int64_t now = monotonic_ns();
    ASSERT_GE(now, before);
    before = now;
  }
}

TEST(Error, CollectiveErrorSaysWhoWhatAndHowLong) {
  const CollectiveError error(3, "allreduce", 17, std::chrono::milliseconds(5000), "peer gone");
  EXPECT_STREQ(error.what(),
               "rank 3: collective allreduce number 17 failed (timeout 5000 ms): peer gone");
  EXPECT_EQ(error.sequence, 17);
}

TEST(Processors, AreThoseThatThisProcessMayUse) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  const auto all = processors_of_this_process();
  EXPECT_EQ(static_cast<int>(all.size()), CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(all.back()), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(processors_of_this_process(), std::vector<int>{all.back()});
  ::sched_setaffinity(0, sizeof(before), &before);
}

}  // namespace
}  // namespace lockstep
