// Faults of what the ranks of a Gloo job meet through: a file, a TCP store, and who serves it.
#include <arpa/inet.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/attempts.h>
#include <sys/socket.h>

#include "../support/nothing_left.h"
#include "gloo_fixture.h"

namespace lockstep::launch {
namespace {

using launch::End;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A TCP store in a process of its own, as torchrun's agent holds it.
class Server {
 public:
  explicit Server(const std::string& file) : file_(file) {
    std::filesystem::remove(file);
    std::string program = GLOO_RANK, serve = "serve";
    std::vector<char*> words{program.data(), serve.data(), file_.data(), nullptr};
    if (posix_spawn(&pid_, GLOO_RANK, nullptr, nullptr, words.data(), environ) != 0)
      throw Error("cannot start " + program);
    write_file(file + ".pid", std::to_string(pid_));
    if (!launch::within(seconds(20), [&] { return std::filesystem::exists(file_); }))
      throw Error("the store does not come");
  }
  ~Server() { end(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  std::string port() const { return read_file(file_); }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  std::string file_;
  pid_t pid_ = -1;
};

class GlooStore : public GlooFault {
 protected:
  launch::LaunchOptions served_job(const Server& server, std::vector<std::string> scripts) const {
    auto job = job_of(std::move(scripts));
    job.environment["MASTER_ADDR"] = "127.0.0.1";
    job.environment["MASTER_PORT"] = server.port();
    job.environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
    return job;
  }
};

// Row 13. Rank 0 has left its word and waits for rank 1, which comes when the server is dead.
TEST_F(GlooStore, ThatDiesWhileRanksMeetIsNamed) {
  Server server(path("port"));
  const auto port = server.port();
  auto job = served_job(server, {"init", "await:" + path("dead") + ";init"});
  job.linger = seconds(20);
  std::thread killer([&] {
    launch::within(seconds(20), [&] { return std::filesystem::exists(path("port.met")); });
    server.end();
    write_file(path("dead"), std::to_string(monotonic_ns()));
  });
  const auto result = run(job);
  killer.join();
  for (const auto& rank : result.launch.ranks)
    EXPECT_THAT(rank.error, AllOf(HasSubstr("init_process_group failed (timeout 1000 ms)"),
                                  HasSubstr("MASTER_ADDR 127.0.0.1, MASTER_PORT " + port)))
        << text(result);
  const auto took = result.launch.ranks[0].ended_ns - std::stoll(read_file(path("dead")));
  EXPECT_LT(took, std::chrono::nanoseconds(kNamed).count());
}

TEST_F(GlooStore, ThatDiesInTheMiddleOfAJobIsNamed) {
  Server server(path("port"));
  const auto port = server.port();
  const auto script = [&](int rank) {
    return "meet;init;allreduce;pid:" + path(std::to_string(rank)) + ";await:" + path("dead") +
           ";allreduce;new_group";
  };
  const auto job = served_job(server, {script(0), script(1)});
  std::thread killer([&] {
    for (const char* rank : {"0", "1"})
      launch::within(seconds(20), [&] { return std::filesystem::exists(path(rank)); });
    server.end();
    write_file(path("dead"), "");
  });
  const auto result = run(job);
  killer.join();
  for (const auto& rank : result.launch.ranks)
    EXPECT_THAT(rank.error,
                AllOf(HasSubstr("collective new_group failed (timeout 1000 ms): the store at "
                                "127.0.0.1, port " +
                                port),
                      HasSubstr("is gone: the process that serves it"), Not(HasSubstr("frame #"))))
        << text(result);
}

// Row 14, and row 4: whom the ranks that came have not seen.
TEST_F(GlooStore, RanksThatDoNotComeAreListed) {
  const auto script = [&](std::size_t rank) {
    return "meet:1,2;clock:" + path(std::to_string(rank)) + ";init";
  };
  auto job = job_of({"hang", script(1), script(2), "hang"});
  job.linger = seconds(10);  // each says it for itself
  const auto result = run(job);
  for (const std::size_t came : {1U, 2U}) {
    const auto& end = result.launch.ranks[came];
    EXPECT_THAT(end.error,
                AllOf(HasSubstr("init_process_group failed (timeout 1000 ms)"),
                      HasSubstr("not there: rank 0, rank 3."), Not(HasSubstr("rank 1,"))))
        << text(result);
    EXPECT_LT(end.ended_ns - std::stoll(read_file(path(std::to_string(came)))),
              std::chrono::nanoseconds(kNamed).count());
  }
}

// Row 15. The writer lives, so that nothing but the deadline can end the reader, which spins.
TEST_F(GlooStore, AFileTornByItsWriterIsToldOfAtTheDeadline) {
  auto job = job_of({"await:" + path("torn") + ";init", "tear:" + path("torn") + ";hang"});
  job.deadline = milliseconds(4000);
  const auto result = run(job);
  EXPECT_TRUE(result.launch.deadline_expired);
  EXPECT_LT(result.launch.wall, job.deadline + job.grace + seconds(2));
  EXPECT_EQ(result.launch.ranks[0].end, End::deadline) << "its own timeout would have been enough";
  EXPECT_THAT(
      result.launch.summary(),
      AllOf(HasSubstr("rank 0 was still running at the deadline; the file through which the "
                      "ranks meet"),
            HasSubstr("is torn")));
}

TEST_F(GlooStore, AFileTornByAKilledRankIsToldOfWithIt) {
  const auto result =
      run(job_of({"await:" + path("torn") + ";init", "tear:" + path("torn") + ";signal:9"}));
  EXPECT_EQ(result.launch.root_cause, 1);
  EXPECT_LT(result.launch.wall, seconds(6));
  EXPECT_THAT(result.launch.summary(),
              AllOf(HasSubstr("first: rank 1 was ended by signal 9 (SIGKILL)"),
                    HasSubstr("rank 0 was ended by the launcher; the file"), HasSubstr("is torn")));
}

// Row 16. The next attempt finds what the first one met through in the place of its own.
TEST_F(GlooStore, EveryAttemptHasAFreshOneInAFolderOfItsOwn) {
  const auto folder = [&](int attempt) { return path("attempt_" + std::to_string(attempt)); };
  auto job = job_of({"fresh;meet;init;allreduce;fail_once:" + folder(1) + ";allreduce;leave",
                     "fresh;meet;init;allreduce;allreduce;leave"});
  const auto results = supervise_attempts({.job = job, .patience = kPatience}, 1);
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0].launch.root_cause, 0) << text(results[0]);
  EXPECT_EQ(results[0].launch.ranks[0].exit_code, 5);
  EXPECT_TRUE(results[1].launch.completed()) << text(results[1]);
  for (const int attempt : {0, 1})
    EXPECT_EQ(std::filesystem::status(folder(attempt)).permissions(),
              std::filesystem::perms::owner_all);
}

TEST_F(GlooStore, AJobThatIsNeverStartedAgainHasNoFoldersOfAttempts) {
  const auto results =
      supervise_attempts({.job = job_of({"meet;leave", "meet;leave"}), .patience = kPatience}, 0);
  ASSERT_EQ(results.size(), 1U);
  EXPECT_TRUE(results[0].launch.completed()) << text(results[0]);
  EXPECT_TRUE(std::filesystem::exists(path("rank_0.out")));
  EXPECT_FALSE(std::filesystem::exists(path("attempt_0")));
}

// Row 34. What the ranks of a job listen on, once they have met.
class GlooSockets : public GlooStore, public ::testing::WithParamInterface<std::string> {};

TEST_P(GlooSockets, OfOneMachineListenOnLoopbackOnly) {
  const int held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const int on = 1;
  ASSERT_EQ(setsockopt(held, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
  ASSERT_EQ(bind(held, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(held, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int port = ntohs(address.sin_port);

  const auto script = [&](int rank) {
    return "meet;init;allreduce;pid:" + path(std::to_string(rank)) + ";await:" + path("seen") +
           ";allreduce;leave";
  };
  auto job = job_of({script(0), script(1)});
  if (GetParam() == "tcp") {
    job.environment["MASTER_ADDR"] = "localhost";
    job.environment["MASTER_PORT"] = std::to_string(port);
  }
  std::vector<test::Listening> seen;
  std::thread looking([&] {
    for (const char* rank : {"0", "1"}) {
      if (!launch::within(seconds(20), [&] { return std::filesystem::exists(path(rank)); })) return;
      const auto open = test::sockets_of(read_file(path(rank)));
      for (const auto& one : test::listening_sockets())
        if (open.count(one.inode) != 0) seen.push_back(one);
    }
    write_file(path("seen"), "");
  });
  const auto result = run(job);
  looking.join();
  close(held);
  EXPECT_TRUE(result.launch.completed()) << text(result);
  bool store = false;
  for (const auto& one : seen) {
    EXPECT_TRUE(one.address.starts_with("127.") || one.address == "::1") << one.address;
    store = store || one.port == port;
  }
  EXPECT_EQ(store, GetParam() == "tcp");
  EXPECT_GE(seen.size(), 2U) << "Gloo listens on every rank";
}
INSTANTIATE_TEST_SUITE_P(Meeting, GlooSockets, ::testing::Values("file", "tcp"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep::launch
