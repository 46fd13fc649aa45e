// What the reader does with files that are no traces, not whole, or damaged.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/trace/reader.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <limits>

#include "../support/little_memory.h"
#include "../support/refusal.h"
#include "events.h"

namespace lockstep::trace {
namespace {

using test::text_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr std::size_t kHead = 4096;

// A trace of every kind and of one collective that was not left, whose bytes a test may change.
class DamagedTrace : public ::testing::Test {
 protected:
  DamagedTrace() {
    test::RandomFields fields(3);
    {
      Writer writer(folder_.path(), {.rank = 0, .world_size = 2});
      for (std::size_t kind = 0; kind < test::kKinds; ++kind)
        writer.record(random_payload(kind, fields));
      Collective operation;
      operation.op = "allreduce";
      operation.sizes = {4, 5};
      writer.leave(writer.enter(operation), false);
      writer.enter(operation);
    }
    good_ = lockstep::read_file(file_);
    for (const auto& event : trace::read_file(file_).events)
      events_.push_back(text_of(event.payload));
  }

  template <class T>
  std::string with(std::size_t offset, T value) const {
    auto bytes = good_;
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    return bytes;
  }

  void put(const std::string& bytes) {
    // In place: ext4 waits for the disk when a file was emptied before it was written.
    const int fd = open(file_.c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(pwrite(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    ASSERT_EQ(ftruncate(fd, static_cast<off_t>(bytes.size())), 0);
    close(fd);
  }

  std::string refusal_of(const std::string& bytes) {
    put(bytes);
    return refusal([&] { trace::read_file(file_); });
  }

  // Reads the file and its board, whatever they hold; true where the trace was accepted.
  bool survives() {
    bool accepted = false;
    try {
      const auto trace = trace::read_file(file_);
      accepted = true;
      EXPECT_LE(trace.events.size(), events_.size());
    } catch (const Error&) {
    }
    try {
      EXPECT_LE(read_flight_board(file_).in_flight.size(), 64u);
    } catch (const Error&) {
    }
    return accepted;
  }

  TemporaryFolder folder_{"lockstep-trace"};
  fs::path file_ = folder_.path() / "rank_0.trace";
  std::string good_;
  std::vector<std::string> events_;
};

TEST_F(DamagedTrace, CutAtAnyByteIsRefused) {
  for (std::size_t size = 0; size < good_.size(); ++size) {
    // Inside the head every cut looks the same; a few do.
    if (size > 700 && size < kHead - 2) continue;
    put(good_.substr(0, size));
    ASSERT_FALSE(survives()) << "cut to " << size << " bytes";
  }
}

// What was committed is read, whatever stands after it: a record torn by a kill, or zeros.
TEST_F(DamagedTrace, ReadsWhatWasCommittedAndNoMore) {
  std::size_t length = kHead;
  for (std::size_t whole = 0; whole <= events_.size(); ++whole) {
    for (const char* tail : {"", "\x40\0\0\0torn", "\xff\xff\xff\xff\xff\xff\xff\xff"}) {
      put(with<std::uint64_t>(64, length).substr(0, length) + std::string(tail, *tail ? 8 : 0));
      const auto trace = trace::read_file(file_);
      ASSERT_EQ(trace.events.size(), whole);
      for (std::size_t i = 0; i < whole; ++i)
        ASSERT_EQ(text_of(trace.events[i].payload), events_[i]);
    }
    if (whole == events_.size()) break;
    std::uint32_t size = 0;
    std::memcpy(&size, good_.data() + length, sizeof size);
    // A length that ends inside the next record is damage.
    for (const auto part : {std::size_t{8}, size - std::size_t{8}})
      EXPECT_THAT(refusal_of(with<std::uint64_t>(64, length + part)), HasSubstr("offset"));
    length += size;
  }
  EXPECT_EQ(length, good_.size());
}

TEST_F(DamagedTrace, AnyFlippedByteIsReadOrRefused) {
  std::size_t accepted = 0;
  auto bytes = good_;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 700) i = kHead;  // the head's unused end
    for (const char flip : {'\x01', '\x80', '\xff'}) {
      bytes[i] = static_cast<char>(good_[i] ^ flip);
      put(bytes);
      accepted += survives();
      ASSERT_FALSE(HasFatalFailure() || HasNonfatalFailure()) << "byte " << i;
    }
    bytes[i] = good_[i];
  }
  EXPECT_GT(accepted, 0u) << "a changed value is still a trace";
}

// With 512 MiB of memory, no file of a few KB may need more: each of its 32-bit words once says
// "four billion".
TEST_F(DamagedTrace, LyingCountsAllocateNothing) {
  if (lockstep::test::kSanitized)
    GTEST_SKIP() << "a sanitizer reserves more address space than this test allows";
  const lockstep::test::LittleMemory little(512);
  ASSERT_TRUE(little.is_set());
  for (std::size_t i = kHead; i + 4 <= good_.size(); ++i)
    for (const std::uint32_t lie : {0xffffffffu, 0x7fffffffu, 0x10000000u}) {
      put(with(i, lie));
      EXPECT_NO_THROW(survives()) << "byte " << i;  // std::bad_alloc would be no Error
    }
}

TEST_F(DamagedTrace, SaysWhatIsWrongAndWhere) {
  EXPECT_THAT(refusal_of("hello"), AllOf(HasSubstr(file_.string()), HasSubstr("4096")));
  EXPECT_THAT(refusal_of(with(0, 'X')), HasSubstr("not a trace"));
  EXPECT_THAT(refusal_of(with(8, std::uint32_t{2})), HasSubstr("version 2"));
  EXPECT_THAT(refusal_of(with(12, std::uint32_t{0x04030201})), HasSubstr("byte order"));
  EXPECT_THAT(refusal_of(with(16, std::int32_t{2})), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(refusal_of(with(20, std::int32_t{1 << 30})), HasSubstr("of 1073741824"));
  EXPECT_THAT(refusal_of(with(20, std::int32_t{0})), HasSubstr("of 0"));
  EXPECT_THAT(refusal_of(with(39, 'X')), HasSubstr("kind"));
  EXPECT_THAT(refusal_of(with<std::uint64_t>(64, good_.size() + 8)),
              AllOf(HasSubstr("offset 64"), HasSubstr(std::to_string(good_.size()))));
  EXPECT_THAT(refusal_of(with<std::uint64_t>(64, 8)), HasSubstr("offset 64"));
  EXPECT_THAT(refusal_of(with(kHead, std::uint32_t{0})), HasSubstr("offset 4096"));
  EXPECT_THAT(refusal_of(with(kHead + 4, std::uint16_t{999})),
              AllOf(HasSubstr("offset 4096"), HasSubstr("unknown kind 999")));
  EXPECT_THAT(refusal_of(with(kHead + 6, std::uint16_t{1})), HasSubstr("offset 4096"));
  // The first record as a "forward", which is shorter than what is there.
  EXPECT_THAT(refusal_of(with(kHead + 4, std::uint16_t{10})),
              AllOf(HasSubstr("offset 4096"), HasSubstr("after the last field")));
}

// Whoever puts attempts behind each other adds their steps.
TEST_F(DamagedTrace, AStepThatNobodyReachesIsRefused) {
  constexpr std::size_t kStep = kHead + 16;
  constexpr std::int64_t kMost = trace::kMostSteps;
  for (const auto step : {std::numeric_limits<std::int64_t>::max(), kMost + 1, std::int64_t{-2},
                          std::numeric_limits<std::int64_t>::min()})
    EXPECT_THAT(refusal_of(with(kStep, step)),
                AllOf(HasSubstr(file_.string()), HasSubstr("offset 4096"),
                      HasSubstr("step " + std::to_string(step))));
  put(with(kStep, kMost));
  EXPECT_EQ(trace::read_file(file_).events[0].step, kMost);
}

// Whoever compares waits doubles them.
TEST_F(DamagedTrace, ATimeThatNoClockShowsIsRefused) {
  constexpr std::size_t kTime = kHead + 8;
  constexpr auto kMost = std::int64_t{1} << 60;
  for (const auto time : {std::numeric_limits<std::int64_t>::max(), kMost + 1, std::int64_t{-1},
                          std::numeric_limits<std::int64_t>::min()})
    EXPECT_THAT(refusal_of(with(kTime, time)),
                AllOf(HasSubstr(file_.string()), HasSubstr("offset 4096"),
                      HasSubstr("time " + std::to_string(time))));
  put(with(kTime, kMost));
  EXPECT_EQ(trace::read_file(file_).events[0].time_ns, kMost);
}

TEST_F(DamagedTrace, BoardMustPointAtCollectives) {
  for (const std::uint64_t offset : {std::uint64_t{1}, std::uint64_t{kHead}, good_.size() - 8,
                                     good_.size(), ~std::uint64_t{0}}) {
    put(with(96, offset));
    EXPECT_THAT(refusal([&] { read_flight_board(file_); }),
                AllOf(HasSubstr(file_.string()), HasSubstr("offset " + std::to_string(offset))));
  }
  put(good_);
  EXPECT_EQ(read_flight_board(file_).in_flight.size(), 1u);
}

// Between completing a record and clearing its place, a leaving thread may be interrupted.
TEST_F(DamagedTrace, BoardIsSilentOnWhatWasLeft) {
  std::uint64_t open = 0;
  std::memcpy(&open, good_.data() + 96, sizeof open);
  std::uint32_t size = 0;
  std::memcpy(&size, good_.data() + open, sizeof size);
  put(with<std::uint64_t>(96, open - size));  // the same operation before it, which was left
  EXPECT_TRUE(read_flight_board(file_).in_flight.empty());
}

TEST_F(DamagedTrace, ATraceThatWasCutOffSaysSo) {
  EXPECT_FALSE(trace::read_file(file_).truncated);
  EXPECT_FALSE(read_flight_board(file_).truncated);
  put(with<std::uint64_t>(608, 1));
  EXPECT_TRUE(trace::read_file(file_).truncated);
  EXPECT_TRUE(read_flight_board(file_).truncated);
}

TEST_F(DamagedTrace, FolderMustHoldOneJob) {
  const auto refused = [&] { return refusal([&] { read(folder_.path()); }); };
  lockstep::write_file(folder_.path() / "rank_1.trace.new.17", "of a rank that died being born");
  lockstep::write_file(folder_.path() / "notes.txt", "not ours");
  EXPECT_EQ(read(folder_.path()).ranks.size(), 1u);

  lockstep::write_file(folder_.path() / "rank_1.trace", good_);
  EXPECT_THAT(refused(), AllOf(HasSubstr("two traces of rank 0"), HasSubstr(file_.string()),
                               HasSubstr((folder_.path() / "rank_1.trace").string())));
  lockstep::write_file(folder_.path() / "rank_1.trace", with(20, std::int32_t{3}));
  EXPECT_THAT(refused(), HasSubstr("world sizes"));
  lockstep::write_file(folder_.path() / "rank_1.trace", "");
  EXPECT_THAT(refused(), HasSubstr("rank_1.trace"));
  fs::remove(folder_.path() / "rank_1.trace");
  fs::remove(file_);
  EXPECT_THAT(refused(), HasSubstr("holds no trace"));
  fs::create_directories(folder_.path() / "runs" / "first");
  Writer(folder_.path() / "runs" / "first", {});
  EXPECT_THAT(refused(), HasSubstr("name a folder below it that does:\n  " +
                                   (folder_.path() / "runs" / "first").string()));
  EXPECT_THAT(refusal([&] { read(folder_.path() / "absent"); }), HasSubstr("absent"));
  EXPECT_THAT(refusal([&] { read_flight_board(folder_.path() / "absent"); }), HasSubstr("absent"));
}

// What somebody else may have put into a folder.
TEST_F(DamagedTrace, IsAFileAndNothingElse) {
  const auto other = folder_.path() / "rank_1.trace", launcher = launcher_file(folder_.path());
  const auto refused = [&] { return refusal([&] { read(folder_.path()); }); };
  for (const auto& place : {other, launcher}) {
    ASSERT_EQ(mkfifo(place.c_str(), 0600), 0);
    EXPECT_THAT(refused(), AllOf(HasSubstr(place.string()), HasSubstr("no regular file")));
    fs::remove(place);
    fs::create_symlink("/dev/zero", place);
    EXPECT_THAT(refused(), AllOf(HasSubstr(place.string()), HasSubstr("is a link")));
    fs::remove(place);
    fs::create_symlink("/nowhere", place);
    EXPECT_THAT(refused(), HasSubstr("is a link"));
    fs::remove(place);
    fs::create_directory(place);
    EXPECT_THAT(refused(), HasSubstr("no regular file"));
    fs::remove(place);
  }
  lockstep::write_file(folder_.path() / "rank_1\x1b]0;x\x07.trace", "no name of a trace");
  lockstep::write_file(folder_.path() / "rank_one.trace", "nor is this");
  EXPECT_EQ(refused(), "");
}

// 3 GB that are not there.
TEST_F(DamagedTrace, AHoleCostsNoMemory) {
  if (lockstep::test::kSanitized) GTEST_SKIP() << "a sanitizer reserves more address space";
  fs::resize_file(file_, std::uintmax_t{3} << 30);
  std::string longer, one_record;
  {
    const lockstep::test::LittleMemory little(1024);
    ASSERT_TRUE(little.is_set());
    EXPECT_EQ(trace::read_file(file_).events.size(), events_.size());
    const auto change = [&](std::uint64_t offset, auto value) {
      const int fd = open(file_.c_str(), O_WRONLY | O_CLOEXEC);
      EXPECT_EQ(pwrite(fd, &value, sizeof value, static_cast<off_t>(offset)),
                static_cast<ssize_t>(sizeof value));
      close(fd);
    };
    change(64, std::uint64_t{3} << 30);
    longer = refusal([&] { trace::read_file(file_); });
    change(kHead, std::uint32_t{3} << 30);
    one_record = refusal([&] { trace::read_file(file_); });
  }
  EXPECT_THAT(longer, HasSubstr("a record of 0 bytes"));
  EXPECT_THAT(one_record, HasSubstr("a record of 3221225472 bytes"));
}

TEST(TraceFolder, RanksComeInOrder) {
  const TemporaryFolder folder("lockstep-trace");
  for (const int rank : {10, 2, 0}) Writer(folder.path(), {.rank = rank, .world_size = 11});
  std::vector<int> order;
  for (const auto& rank : read(folder.path()).ranks) order.push_back(rank.participant.rank);
  EXPECT_THAT(order, ::testing::ElementsAre(0, 2, 10));
}

}  // namespace
}  // namespace lockstep::trace
