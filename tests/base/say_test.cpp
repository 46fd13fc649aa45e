// What is said on standard error by a program that has done something else with it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <lockstep/base/file.h>
#include <lockstep/base/say.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace lockstep {
namespace {

// How a process ends that was forked to do this; 0: it returned.
int status_of(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(30);  // should it wait
    body();
    _exit(0);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  return status;
}

class SayTest : public ::testing::Test {
 protected:
  // Its number is 2.
  void open_as_standard_error(const std::string& name) const {
    const int fd = open((folder_.path() / name).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd == STDERR_FILENO) return;
    dup2(fd, STDERR_FILENO);
    close(fd);
  }
  std::string text(const std::string& name) const { return read_file(folder_.path() / name); }

  TemporaryFolder folder_{"lockstep-say"};
};

TEST_F(SayTest, NothingIsWrittenIntoAFileThatGotTheNumber) {
  EXPECT_EQ(status_of([&] {
              open_as_standard_error("words");
              note_standard_error();
              say("first\n");
              close(STDERR_FILENO);
              say("nowhere\n");
              open_as_standard_error("data");
              say("second\n");
              open_as_standard_error("words");
              say("third\n");
            }),
            0);
  EXPECT_EQ(text("words"), "first\nthird\n");
  EXPECT_EQ(text("data"), "");
}

TEST_F(SayTest, WithoutAStandardErrorAtTheStartThereIsNone) {
  EXPECT_EQ(status_of([&] {
              close(STDERR_FILENO);
              note_standard_error();
              open_as_standard_error("data");
              say("words\n");
            }),
            0);
  EXPECT_EQ(text("data"), "");
}

void take_away_the_reader() {
  int ends[2];
  if (pipe(ends) != 0) _exit(1);
  dup2(ends[1], STDERR_FILENO);
  close(ends[0]);
  close(ends[1]);
  note_standard_error();
}

bool is_pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

TEST_F(SayTest, APipeWithoutAReaderEndsNobody) {
  EXPECT_EQ(status_of([] {
              signal(SIGPIPE, SIG_DFL);
              take_away_the_reader();
              say("words\n");
              if (is_pending()) _exit(2);
            }),
            0);
}

TEST_F(SayTest, ASignalThatWaitedBeforeStillWaits) {
  EXPECT_EQ(status_of([] {
              sigset_t pipe_alone;
              sigemptyset(&pipe_alone);
              sigaddset(&pipe_alone, SIGPIPE);
              sigprocmask(SIG_BLOCK, &pipe_alone, nullptr);
              raise(SIGPIPE);
              take_away_the_reader();
              say("words\n");
              if (!is_pending()) _exit(2);
            }),
            0);
}

}  // namespace
}  // namespace lockstep
