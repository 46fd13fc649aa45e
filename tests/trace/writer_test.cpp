// What the writer leaves behind when it is killed, has no room, or is used by many threads.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/base/say.h>
#include <lockstep/trace/reader.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <functional>
#include <latch>
#include <optional>
#include <thread>

#include "../support/little_memory.h"

namespace lockstep::trace {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

// A child process that can say "so far" once, and be killed.
class Child {
 public:
  // `body` gets a function that tells the parent to go on.
  explicit Child(const std::function<void(const std::function<void()>&)>& body) {
    int ends[2];
    if (pipe(ends) != 0) throw Error("no pipe");
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      alarm(30);  // should the test die
      body([&] { [[maybe_unused]] const auto written = write(ends[1], "x", 1); });
      _exit(0);
    }
    close(ends[1]);
    char byte = 0;
    told_ = ::read(ends[0], &byte, 1) == 1;
    close(ends[0]);
  }
  ~Child() { kill_now(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool told() const { return told_; }
  int kill_now() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    return wait();
  }
  int wait() {
    if (pid_ > 0) waitpid(pid_, &status_, 0);
    pid_ = 0;
    return status_;
  }

 private:
  pid_t pid_ = 0;
  bool told_ = false;
  int status_ = 0;
};

// What the library says meanwhile.
class Words {
 public:
  Words() {
    ::testing::internal::CaptureStderr();
    note_standard_error();
  }
  std::string taken() {
    auto said = ::testing::internal::GetCapturedStderr();
    note_standard_error();
    return said;
  }
};

Collective collective(std::int64_t sequence, const char* op = "allreduce") {
  return {.sequence = sequence,
          .group = "default_pg",
          .op = op,
          .reduce_op = "sum",
          .dtype = "float32",
          .sizes = {1000}};
}

std::vector<std::int64_t> sequences(const std::vector<Event>& events) {
  std::vector<std::int64_t> found;
  for (const auto& event : events) found.push_back(event.as<Collective>()->sequence);
  return found;
}

class TraceWriter : public ::testing::Test {
 protected:
  TemporaryFolder folder_{"lockstep-trace"};
  fs::path file_ = folder_.path() / "rank_0.trace";
};

TEST_F(TraceWriter, KilledInTheMiddleLeavesAWholePrefix) {
  for (int round = 0; round < 20; ++round) {
    const auto folder = folder_.path() / std::to_string(round);
    fs::create_directory(folder);
    Child child([&](const auto& tell) {
      Writer writer(folder, {});
      for (std::int64_t i = 0;; ++i) {
        writer.set_step(i);
        writer.record(
            Samples{"train", std::vector<std::int64_t>(static_cast<std::size_t>(i % 50), i)});
        if (i == 100 * round) tell();
      }
    });
    ASSERT_TRUE(child.told());
    ASSERT_TRUE(WIFSIGNALED(child.kill_now()));
    const auto trace = read(folder).ranks.at(0);
    EXPECT_FALSE(trace.closed);
    ASSERT_GT(trace.events.size(), static_cast<std::size_t>(100 * round));
    for (std::size_t i = 0; i < trace.events.size(); ++i) {
      const auto number = static_cast<std::int64_t>(i);
      ASSERT_EQ(trace.events[i].step, number);
      ASSERT_EQ(trace.events[i].as<Samples>()->ids.list(),
                std::vector<std::int64_t>(i % 50, number));
    }
  }
}

TEST_F(TraceWriter, BoardShowsWhatIsUnfinishedRunningAndKilled) {
  Child child([&](const auto& tell) {
    Writer writer(folder_.path(), {.rank = 0, .world_size = 4});
    const auto first = writer.enter(collective(1));
    writer.enter(collective(2, "broadcast"));
    const auto third = writer.enter(collective(3));
    writer.enter(collective(4, "barrier"));
    writer.leave(third, false);
    writer.leave(first, true);
    tell();
    pause();
  });
  ASSERT_TRUE(child.told());
  for (const bool killed : {false, true}) {
    if (killed) child.kill_now();
    const auto board = read_flight_board(file_);
    EXPECT_EQ(board.participant.world_size, 4);
    EXPECT_FALSE(board.closed);
    EXPECT_EQ(board.entered, 4u);
    EXPECT_EQ(board.left, 2u);
    EXPECT_THAT(sequences(board.in_flight), ::testing::ElementsAre(2, 4));
    EXPECT_EQ(board.in_flight.at(0).as<Collective>()->op, "broadcast");

    const auto trace = read_file(file_);
    ASSERT_EQ(trace.events.size(), 4u);
    for (const auto& event : trace.all<Collective>()) {
      const bool left = event.event->sequence % 2 == 1;
      EXPECT_EQ(event.left_ns >= event.time_ns, left) << event.event->sequence;
      EXPECT_EQ(event.event->failed, event.event->sequence == 1);
    }
  }
}

TEST_F(TraceWriter, BoardHolds64AndTheCountersTheRest) {
  Writer writer(folder_.path(), {});
  std::vector<std::uint64_t> handles;
  for (int i = 1; i <= 70; ++i) handles.push_back(writer.enter(collective(i)));
  auto board = read_flight_board(file_);
  EXPECT_EQ(board.in_flight.size(), 64u);
  EXPECT_EQ(board.entered - board.left, 70u);
  for (const auto handle : handles) writer.leave(handle, false);
  board = read_flight_board(file_);
  EXPECT_TRUE(board.in_flight.empty());
  EXPECT_EQ(board.entered - board.left, 0u);
  writer.leave(writer.enter(collective(71)), true);
  writer.enter(collective(72));
  EXPECT_THAT(sequences(read_flight_board(file_).in_flight), ::testing::ElementsAre(72));
  const auto trace = read_file(file_);
  EXPECT_EQ(trace.events.size(), 72u);
  for (const auto& event : trace.all<Collective>())
    EXPECT_EQ(event.left_ns > 0, event.event->sequence < 72);
}

// Four threads enter, leave (each other's, too) and record, while the file is read.
TEST_F(TraceWriter, ThreadsDoNotDisturbEachOther) {
  constexpr int kThreads = 4, kEach = 6000;
  std::latch all_here(kThreads);
  std::atomic<bool> done{false};
  auto writer = std::make_unique<Writer>(folder_.path(), Participant{});
  std::atomic<std::uint64_t> passed_on{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      all_here.arrive_and_wait();
      for (int i = 0; i < kEach; ++i) {
        const auto handle = writer->enter(collective(t * kEach + i));
        if (i % 3 == 0) writer->record(SetEpoch{t * kEach + i});
        // Leaves what another thread handed over, and hands its own on.
        const auto other = passed_on.exchange(handle);
        if (other != 0) writer->leave(other, false);
      }
    });
  std::thread reader([&] {
    while (!done) {
      const auto board = read_flight_board(file_);
      EXPECT_LE(board.in_flight.size(), static_cast<std::size_t>(2 * kThreads + 1));
      const auto so_far = read_file(file_);
      for (const auto& event : so_far.all<Collective>())
        EXPECT_TRUE(event.left_ns == 0 || event.left_ns >= event.time_ns);
    }
  });
  for (auto& thread : threads) thread.join();
  done = true;
  reader.join();
  writer->leave(passed_on, false);
  EXPECT_TRUE(read_flight_board(file_).in_flight.empty());
  writer.reset();

  const auto trace = read_file(file_);
  EXPECT_TRUE(trace.closed);
  std::vector<std::int64_t> seen;
  std::int64_t last = 0;
  for (const auto& event : trace.all<Collective>()) {
    seen.push_back(event.event->sequence);
    EXPECT_GE(event.left_ns, event.time_ns);
    EXPECT_GE(event.time_ns, last) << "in the order they were entered";
    last = event.time_ns;
  }
  std::sort(seen.begin(), seen.end());
  ASSERT_EQ(seen.size(), static_cast<std::size_t>(kThreads * kEach));
  for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], static_cast<std::int64_t>(i));
  EXPECT_EQ(trace.all<SetEpoch>().size(), static_cast<std::size_t>(kThreads * kEach / 3));
}

// W processes that nobody told their ranks: each is rank 0 of 1.
TEST_F(TraceWriter, ProcessesThatAreEachAloneHaveAFileEach) {
  std::vector<std::unique_ptr<Child>> others;
  for (const std::int64_t epoch : {1, 2})
    others.push_back(std::make_unique<Child>([&](const std::function<void()>& tell) {
      Writer writer(folder_.path(), {});
      writer.record(SetEpoch{epoch});
      tell();
      pause();
    }));
  { Writer(folder_.path(), {}).record(SetEpoch{3}); }
  others.clear();
  const auto trace = read(folder_.path());
  EXPECT_EQ(trace.world_size, 1);
  ASSERT_EQ(trace.ranks.size(), 1u);
  EXPECT_EQ(trace.ranks[0].all<SetEpoch>().at(0).event->epoch, 1);
  ASSERT_EQ(trace.alone.size(), 2u);
  EXPECT_EQ(trace.alone[0].all<SetEpoch>().at(0).event->epoch, 2);
  EXPECT_EQ(trace.alone[1].all<SetEpoch>().at(0).event->epoch, 3);
  EXPECT_THROW(Writer(folder_.path(), {}), Error) << "the first one has ended: that is another run";
}

// Each is process 1 of its container.
TEST_F(TraceWriter, ProcessesOfTwoContainersMayHaveOnePid) {
  const auto contained = [&] {
    return std::make_unique<Child>([&](const std::function<void()>& tell) {
      if (unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) return;
      if (const auto inner = fork(); inner != 0) {
        waitpid(inner, nullptr, 0);
        return;
      }
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getpid() != 1) return;
      Writer writer(folder_.path(), {});
      tell();
      pause();
    });
  };
  const auto one = contained();
  if (!one->told()) GTEST_SKIP() << "this machine makes no namespaces for its users";
  const auto other = contained();
  EXPECT_TRUE(other->told());
  EXPECT_EQ(read(folder_.path()).alone.size(), 1u);
}

// Blocks stand behind every byte that may be stored to, so that a store cannot meet a full disk.
TEST_F(TraceWriter, RoomIsTakenBeforeItIsUsed) {
  Writer writer(folder_.path(), {});
  const auto expect_blocks = [&](std::int64_t at_least) {
    struct stat info {};
    ASSERT_EQ(stat(file_.c_str(), &info), 0);
    EXPECT_GE(info.st_size, at_least);
    EXPECT_GE(info.st_blocks * 512, info.st_size);
  };
  expect_blocks(4096);
  writer.record(Samples{"train", std::vector<std::int64_t>(400'000)});
  expect_blocks(3'200'000);
}

// A file-size limit stands for a full disk, and the test's own stderr for the program's.
TEST_F(TraceWriter, NoRoomCutsTheTraceAndNotTheProgram) {
  rlimit usual{};
  getrlimit(RLIMIT_FSIZE, &usual);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = usual;
  small.rlim_cur = 1'500'000;
  Words words;
  {
    Writer writer(folder_.path(), {});
    const auto handle = writer.enter(collective(1));
    setrlimit(RLIMIT_FSIZE, &small);
    for (int i = 0; i < 50'000; ++i) EXPECT_NO_THROW(writer.record(SetEpoch{i}));
    std::uint64_t lost = 1;
    EXPECT_NO_THROW(lost = writer.enter(collective(2)));
    EXPECT_NO_THROW(writer.leave(lost, true));
    writer.leave(handle, false);  // needs no room
    setrlimit(RLIMIT_FSIZE, &usual);
    writer.record(SetEpoch{50'000});  // room again: a hole in the middle would be worse than no end
    const auto board = read_flight_board(file_);
    EXPECT_EQ(board.entered, 1u);
    EXPECT_EQ(board.left, 1u);
    EXPECT_TRUE(board.truncated);
  }
  std::signal(SIGXFSZ, before);
  const auto said = words.taken();
  EXPECT_THAT(said, ::testing::AllOf(HasSubstr("cannot grow"), HasSubstr(file_.string())));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  const auto trace = read_file(file_);
  EXPECT_TRUE(trace.closed);
  EXPECT_TRUE(trace.truncated);
  const auto epochs = trace.all<SetEpoch>();
  ASSERT_GT(epochs.size(), 30'000u) << "1 MiB of 32 bytes each";
  ASSERT_LT(epochs.size(), 50'000u);
  for (std::size_t i = 0; i < epochs.size(); ++i)
    ASSERT_EQ(epochs[i].event->epoch, static_cast<std::int64_t>(i));
  EXPECT_GT(trace.all<Collective>().at(0).left_ns, 0);
  EXPECT_EQ(trace.all<Collective>().size(), 1u);
}

// Such as a process that writes a checkpoint in the background.
TEST_F(TraceWriter, AForkedChildWritesNothing) {
  Writer writer(folder_.path(), {});
  writer.record(Update{{0.5}});
  const auto handle = writer.enter(collective(1));
  Child([&](const auto&) {
    writer.record(Update{{0.25}});
    writer.enter(collective(2));
    writer.leave(handle, true);
    writer.end(false);
  }).wait();
  writer.record(Update{{0.125}});
  writer.leave(handle, false);
  const auto trace = read_file(file_);
  EXPECT_FALSE(trace.closed);
  ASSERT_EQ(trace.all<Update>().size(), 2u);
  EXPECT_EQ(trace.all<Update>()[1].event->lr, std::vector<double>{0.125});
  ASSERT_EQ(trace.all<Collective>().size(), 1u);
  EXPECT_FALSE(trace.all<Collective>()[0].event->failed);
}

// Such as a helper that outlives a program that was killed.
TEST_F(TraceWriter, AForkedChildDoesNotHoldTheTrace) {
  int until[2];
  ASSERT_EQ(pipe(until), 0);
  Child child([&](const auto& tell) {
    Writer writer(folder_.path(), {});
    if (fork() == 0) {
      close(until[1]);
      tell();
      char none = 0;
      _exit(static_cast<int>(::read(until[0], &none, 1)));
    }
    pause();
  });
  close(until[0]);
  EXPECT_TRUE(child.told());
  EXPECT_TRUE(is_being_written(file_));
  child.kill_now();
  EXPECT_FALSE(is_being_written(file_));
  close(until[1]);
}

TEST_F(TraceWriter, AForkedChildLeavesItsParentTheLock) {
  Writer writer(folder_.path(), {});
  Child([](const auto&) {}).wait();
  writer.record(SetEpoch{1});
  EXPECT_TRUE(is_being_written(file_));
  writer.end(false);
  EXPECT_EQ(read_file(file_).events.size(), 1u);
}

// While somebody else still holds the writer.
TEST_F(TraceWriter, EndsBeforeItsProgramDoes) {
  Writer writer(folder_.path(), {});
  const auto entered = writer.enter(collective(1));
  writer.record(SetEpoch{1});
  writer.end(true);
  writer.end(false);
  const auto size = std::filesystem::file_size(file_);
  writer.record(SetEpoch{2});
  writer.leave(writer.enter(collective(2)), false);
  writer.leave(entered, false);
  EXPECT_EQ(std::filesystem::file_size(file_), size);
  const auto trace = read_file(file_);
  EXPECT_TRUE(trace.closed);
  EXPECT_TRUE(trace.truncated);
  EXPECT_EQ(trace.events.size(), 2u);
  EXPECT_GT(trace.all<Collective>().at(0).left_ns, 0);
}

// More than is mapped at once, and a collective that was entered in the first part of it.
TEST_F(TraceWriter, LeavesWhatWasEnteredLongBefore) {
  const Payload large = Samples{"train", std::vector<std::int64_t>(400'000)};  // 3.2 MB
  {
    Writer writer(folder_.path(), {});
    const auto first = writer.enter(collective(1));
    for (int i = 0; i < 45; ++i) writer.record(large);
    const auto second = writer.enter(collective(2));
    EXPECT_THAT(sequences(read_flight_board(file_).in_flight), ::testing::ElementsAre(1, 2));
    writer.leave(first, false);
    writer.leave(second, true);
  }
  const auto trace = read_file(file_);
  EXPECT_FALSE(trace.truncated);
  EXPECT_EQ(trace.events.size(), 47u);
  for (const auto& event : trace.all<Collective>()) {
    EXPECT_GE(event.left_ns, event.time_ns);
    EXPECT_EQ(event.event->failed, event.event->sequence - 1);
  }
}

// Under ulimit -v, with room for a few hundred MB.
TEST_F(TraceWriter, NeedsLittleAddressSpace) {
  if (lockstep::test::kSanitized)
    GTEST_SKIP() << "a sanitizer reserves more address space than this test allows";
  std::string failure;
  try {
    const lockstep::test::LittleMemory little(512);
    ASSERT_TRUE(little.is_set());
    for (int rank = 0; rank < 3; ++rank)
      Writer(folder_.path(), {.rank = rank, .world_size = 3}).record(SetEpoch{rank});
  } catch (const Error& error) {
    failure = error.what();
  }
  EXPECT_EQ(failure, "");
  EXPECT_EQ(read(folder_.path()).ranks.size(), 3u);
}

// The descriptors of this process that the trace's file has.
std::vector<int> descriptors_of(const fs::path& file) {
  std::vector<int> found;
  std::error_code none;
  for (const auto& each : fs::directory_iterator("/proc/self/fd"))
    if (fs::equivalent(each.path(), file, none)) found.push_back(std::stoi(each.path().filename()));
  return found;
}

TEST_F(TraceWriter, LeavesTheProgramsDescriptorsTheirNumbers) {
  const int before = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(before);
  Writer writer(folder_.path(), {});
  const int after = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(after);
  EXPECT_EQ(after, before);
}

// As a daemon closes what it inherited; and then it opens a file of its own.
TEST_F(TraceWriter, GoesOnWhereTheProgramClosesItsDescriptor) {
  const auto own = folder_.path() / "own";
  {
    Writer writer(folder_.path(), {});
    const auto entered = writer.enter(collective(1));
    const auto numbers = descriptors_of(file_);
    ASSERT_EQ(numbers.size(), 1u);
    const int fd = open(own.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_EQ(dup2(fd, numbers[0]), numbers[0]);
    writer.record(Samples{"train", std::vector<std::int64_t>(400'000)});  // it has to grow
    writer.leave(entered, false);
    close(fd);
    EXPECT_EQ(fcntl(numbers[0], F_GETFD), 0) << "it is the program's now, and stays open";
    close(numbers[0]);
  }
  EXPECT_EQ(fs::file_size(own), 0u);
  const auto trace = read_file(file_);
  EXPECT_TRUE(trace.closed);
  EXPECT_FALSE(trace.truncated);
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_GT(trace.all<Collective>().at(0).left_ns, 0);
}

TEST_F(TraceWriter, EndsWhereSomebodyCutsIt) {
  Words words;
  {
    Writer writer(folder_.path(), {});
    const auto entered = writer.enter(collective(1));
    ASSERT_EQ(truncate(file_.c_str(), 0), 0);
    writer.record(SetEpoch{1});
    writer.leave(entered, false);
    writer.enter(collective(2));
    writer.end(true);
  }
  const auto said = words.taken();
  EXPECT_THAT(said, ::testing::AllOf(HasSubstr(file_.string()), HasSubstr("cut")));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_EQ(fs::file_size(file_), 0u) << "what somebody emptied stays empty";
}

TEST_F(TraceWriter, EndsWhereSomebodyRemovesIt) {
  for (const bool is_replaced : {false, true}) {
    Words words;
    {
      Writer writer(folder_.path(), {});
      writer.record(SetEpoch{1});
      if (is_replaced) close(descriptors_of(file_).at(0));
      fs::remove(file_);
      if (is_replaced) write_file(file_, "another's");
      writer.record(SetEpoch{2});
      writer.record(SetEpoch{3});
      EXPECT_THAT(descriptors_of(file_), ::testing::IsEmpty());
    }
    const auto said = words.taken();
    EXPECT_THAT(said, ::testing::AllOf(HasSubstr(file_.string()), HasSubstr("removed")));
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  }
}

// A program that rank 0 starts, such as one that measures a batch size, inherits the variables of rank 0.
TEST_F(TraceWriter, WhatARankStartsIsNotTheRank) {
  const Participant rank{.rank = 0, .world_size = 2};
  { Writer(folder_.path(), rank).record(SetEpoch{1}); }
  {
    Writer writer(folder_.path(), rank);
    writer.record(Group{"join", "0", {0, 1}});
    writer.record(SetEpoch{2});
    const auto first = read_file(file_);
    EXPECT_EQ(first.all<SetEpoch>().at(0).event->epoch, 1);
  }
  { Writer(folder_.path(), {.rank = 1, .world_size = 2}).record(SetEpoch{3}); }
  const auto trace = read(folder_.path());
  ASSERT_EQ(trace.ranks.size(), 2u);
  EXPECT_EQ(trace.ranks[0].all<SetEpoch>().at(0).event->epoch, 2);
  EXPECT_TRUE(trace.alone.empty());
  EXPECT_THROW(Writer(folder_.path(), rank), Error) << "rank 0 has joined: this is another run";
}

TEST_F(TraceWriter, RefusesAFileThatIsThereAndAFolderThatIsNot) {
  { Writer(folder_.path(), {}).record(SetEpoch{5}); }
  for (const auto& [folder, text] : {std::pair(folder_.path(), "already"),
                                     std::pair(folder_.path() / "absent", "No such file")}) {
    try {
      Writer writer(folder, {});
      ADD_FAILURE() << folder << " was accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::AllOf(HasSubstr("rank_0.trace"), HasSubstr(text)));
    }
  }
  const auto trace = read_file(file_);
  ASSERT_EQ(trace.events.size(), 1u) << "the trace that was there is untouched";
  EXPECT_EQ(trace.events[0].step, -1) << "no step was set: before training";
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()), 1)
      << "no draft is left";
}

TEST_F(TraceWriter, RefusesWhatTheReaderWould) {
  for (const Participant& nobody :
       {Participant{.rank = 2, .world_size = 2}, Participant{.rank = -1, .world_size = 2},
        Participant{.rank = 0, .world_size = 0},
        Participant{.rank = 0, .world_size = 1, .kind = "sixteen bytes ..."}})
    EXPECT_THROW(Writer(folder_.path(), nobody), UsageError);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
  { Writer(folder_.path(), {.rank = 0, .world_size = 1, .kind = "fifteen bytes ."}); }
  EXPECT_EQ(read_file(file_).participant.kind, "fifteen bytes .");
}

// From here on any system call of this thread's but fstat and exit kills the process. (Not seccomp's strict
// mode, which also forbids reading the processor's clock.) False where the system refuses.
bool forbid_system_calls() {
  sock_filter rules[] = {
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 3, 0, SYS_fstat},
      {BPF_JMP | BPF_JEQ | BPF_K, 2, 0, SYS_newfstatat},  // which fstat() may be
      {BPF_JMP | BPF_JEQ | BPF_K, 1, 0, SYS_exit_group},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  };
  const sock_fprog program{std::size(rules), rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// How a child ends that does this, after what may call: 0 where it made no other system call.
int status_without_system_calls(
    const std::function<void()>& body, const std::function<void()>& before = [] {}) {
  Child child([&](const auto& tell) {
    before();
    tell();
    if (!forbid_system_calls()) _exit(3);
    body();
    syscall(SYS_exit_group, 0);
  });
  return child.wait();
}

TEST_F(TraceWriter, UsualPathAsksForTheFilesStateOnly) {
  if (status_without_system_calls([] { monotonic_ns(); }) != 0)
    GTEST_SKIP() << "here reading the clock is a system call, or none can be forbidden";
  EXPECT_TRUE(WIFSIGNALED(status_without_system_calls([] { getppid(); }))) << "nothing is seen";
  const Payload samples = Samples{"train", std::vector<std::int64_t>(64)};
  const Collective operation = collective(1);
  std::optional<Writer> writer;  // the child's
  const auto make = [&] {
    writer.emplace(folder_.path(), Participant{});
    writer->record(samples);  // the buffer has its size now
  };
  const auto use = [&] {
    for (int i = 0; i < 500; ++i) {
      writer->leave(writer->enter(operation), false);
      writer->record(samples);
    }
  };
  EXPECT_EQ(status_without_system_calls(use, make), 0);
  EXPECT_EQ(read_file(file_).events.size(), 1001u);
}

}  // namespace
}  // namespace lockstep::trace
