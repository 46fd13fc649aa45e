// The lines of a C++ program that are written beside its trace.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/file.h>
#include <lockstep/record/lines.h>
#include <lockstep/train/loss.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

namespace lockstep::record {
namespace {

using nlohmann::json;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

class LinesTest : public ::testing::Test {
 protected:
  std::filesystem::path file() const { return folder_.path() / "places_0.jsonl"; }
  std::vector<json> written() const {
    std::vector<json> lines;
    std::istringstream text(read_file(file()));
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
  }
  std::shared_ptr<Lines> listen() const {
    auto lines = std::make_shared<Lines>(folder_.path(), writer_);
    observe(lines);
    return lines;
  }

  TemporaryFolder folder_{"lockstep-lines"};
  std::shared_ptr<trace::Writer> writer_ =
      std::make_shared<trace::Writer>(folder_.path(), trace::Participant{.world_size = 1});
};

TEST_F(LinesTest, AreWrittenOnceWithTheFirstStep) {
  const auto lines = listen();
  for (int step = 3; step < 6; ++step) {
    writer_->set_step(step);
    tell_began("update", Place::here());
    tell_loss(at::ones({2}));
  }
  const auto all = written();
  ASSERT_THAT(all, SizeIs(2));
  EXPECT_EQ(all[0].at("kind"), "update");
  EXPECT_EQ(all[0].at("step"), 3);
  EXPECT_EQ(all[0].at("file"), std::filesystem::absolute(__FILE__).lexically_normal().string());
  EXPECT_EQ(all[0].at("source"), "tell_began(\"update\", Place::here());");
  EXPECT_EQ(all[1].at("kind"), "backward");
  EXPECT_EQ(all[1].at("source"), "tell_loss(at::ones({2}));") << "not the library's own line";
  EXPECT_EQ(all[1].at("line").get<int>(), all[0].at("line").get<int>() + 1);
  struct stat status {};
  ASSERT_EQ(stat(file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
}

// More calls than are kept by their addresses.
TEST_F(LinesTest, OfManyEachIsWrittenOnceForEachKind) {
  const auto lines = listen();
  for (int round = 0; round < 2; ++round)
    for (int line = 1; line <= 30; ++line)
      for (const char* kind : {"update", "collective"}) tell_began(kind, {__FILE__, line});
  EXPECT_THAT(written(), SizeIs(60));
}

TEST_F(LinesTest, OfTheLibraryAreLeftOut) {
  const auto lines = listen();
  tell_began("collective", {LOCKSTEP_COMMON "/lockstep/train/grad_scaler.cpp", 64});
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(LinesTest, AreCutAndGoWithoutASourceThatCannotBeRead) {
  const auto source = folder_.path() / "main.cpp";
  write_file(source, "first\n\t" + std::string(150, 'a') + "\t" + std::string(100, 'b') + "\n");
  const auto name = source.string();
  const auto lines = listen();
  tell_began("pass", {name.c_str(), 2});
  tell_began("pass", {name.c_str(), 9});
  tell_began("pass", {"/nowhere/\xff\n.cpp", 1});
  const auto all = written();
  ASSERT_THAT(all, SizeIs(3));
  EXPECT_EQ(all[0].at("source"), std::string(150, 'a') + " " + std::string(49, 'b'));
  EXPECT_EQ(all[1].at("source"), "");
  EXPECT_EQ(all[2].at("source"), "");
  EXPECT_THAT(all[2].at("file").get<std::string>(), StartsWith("/nowhere/"));
}

TEST_F(LinesTest, WithoutAPlaceForTheFileTheProgramGoesOn) {
  std::filesystem::create_directory(file());
  const auto lines = listen();
  tell_began("pass", Place::here());
  EXPECT_TRUE(std::filesystem::is_empty(file()));
}

TEST_F(LinesTest, NothingIsAddedToWhatIsNotTheRanksAlone) {
  const auto other = folder_.path() / "other";
  write_file(other, "somebody's");
  std::filesystem::create_hard_link(other, file());
  const auto lines = listen();
  tell_began("pass", Place::here());
  EXPECT_EQ(read_file(other), "somebody's");
}

// A program may be compiled out of a pipe.
TEST_F(LinesTest, AreNotWaitedFor) {
  const auto fifo = folder_.path() / "main.cpp";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const auto name = fifo.string();
  const auto lines = listen();
  tell_began("pass", {name.c_str(), 1});
  EXPECT_EQ(written().at(0).at("source"), "");
}

auto handler_of_the_question() {
  struct sigaction action {};
  sigaction(SIGRTMIN, nullptr, &action);
  return action.sa_handler;
}

TEST_F(LinesTest, TheProgramKeepsItsHandlerAndItsDescriptors) {
  ASSERT_EQ(setenv("LOCKSTEP_STACKS", "1", 1), 0);
  const auto before = signal(SIGRTMIN, SIG_IGN);
  {
    const auto lines = listen();
    EXPECT_EQ(handler_of_the_question(), SIG_IGN);
  }
  EXPECT_EQ(handler_of_the_question(), SIG_IGN);
  signal(SIGRTMIN, before);
  const int free = dup(STDERR_FILENO);
  close(free);
  {
    const auto lines = listen();
    const int still_free = dup(STDERR_FILENO);
    close(still_free);
    EXPECT_EQ(still_free, free);
  }
  EXPECT_EQ(handler_of_the_question(), SIG_DFL);
  unsetenv("LOCKSTEP_STACKS");
}

TEST_F(LinesTest, TheLastOneIsToldWhereItIsAskedFor) {
  const auto stack = folder_.path() / ("stack_0_" + std::to_string(getpid()) + ".txt");
  { const auto lines = listen(); }
  EXPECT_FALSE(std::filesystem::exists(stack));
  ASSERT_EQ(setenv("LOCKSTEP_STACKS", "1", 1), 0);
  {
    const auto lines = listen();
    ASSERT_EQ(unsetenv("LOCKSTEP_STACKS"), 0);
    EXPECT_THAT(read_file(stack), IsEmpty());
    raise(SIGRTMIN);
    EXPECT_EQ(read_file(stack), "no line is known\n");
    tell_began("pass", {"/a/main.cpp", 7});
    tell_began("collective", {"/a/main.cpp", 12});
    tell_began("collective", {LOCKSTEP_COMMON "/lockstep/train/grad_scaler.cpp", 64});
    raise(SIGRTMIN);
    tell_began("pass", {"/a/main.cpp", 7});
    raise(SIGRTMIN);
    if (const auto child = fork(); child == 0) {
      raise(SIGRTMIN);  // it is not this one that is asked
      _exit(0);
    } else {
      waitpid(child, nullptr, 0);
    }
  }
  EXPECT_EQ(read_file(stack),
            "no line is known\n"
            "  File \"/a/main.cpp\", line 12 in collective\n"
            "  File \"/a/main.cpp\", line 7 in pass\n");
}

}  // namespace
}  // namespace lockstep::record
