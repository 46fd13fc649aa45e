// Test cases for nothing_left_test.cpp. Those named after what they leave behind fail.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <lockstep/base/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include "script.h"

namespace lockstep {
namespace {

TEST(Leaves, AChild) {
  if (fork() == 0)
    for (;;) pause();
}

// Its parent is gone, and its process group is its own: only its environment tells whose it is.
TEST(Leaves, AnOrphan) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const pid_t middle = fork();
  if (middle == 0) {
    if (fork() == 0) {
      setsid();
      execlp("sleep", "sleep", "600", nullptr);
    }
    _exit(0);
  }
  waitpid(middle, nullptr, 0);
  close(ends[1]);
  char nothing = 0;
  ASSERT_EQ(read(ends[0], &nothing, 1), 0);  // the exec has closed the other end
}

TEST(Leaves, ASocket) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 1), 0);
}

TEST(Leaves, SharedMemory) {
  const auto name = "/lockstep-left-" + std::to_string(getpid());
  ASSERT_GE(shm_open(name.c_str(), O_CREAT | O_RDWR, 0600), 0);
}

TEST(Leaves, AFile) {
  write_file(std::filesystem::temp_directory_path() / "left.txt", "x");
}

TEST(Leaves, Nothing) {
  const TemporaryFolder folder("lockstep-leaves");
}

// nothing_left_test.cpp makes shared memory between the two files.
TEST(Leaves, NothingBesideAnother) {
  const std::filesystem::path meeting = std::getenv("LOCKSTEP_MEETING");
  write_file(meeting / "begun", "");
  fault::await(meeting / "made");
}

}  // namespace
}  // namespace lockstep
