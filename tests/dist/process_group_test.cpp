// How a group comes to be: ranks, methods, errors, and which libraries a Gloo program loads.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/dist/process_group.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "../support/ddp_models.h"
#include "../support/refusal.h"
#include "../support/variable.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using testing::Variable;
using namespace std::chrono_literals;

template <class Exception>
std::string message_of(const InitOptions& options) {
  return refusal<Exception>([&] { init_process_group(options); });
}

TEST(InitProcessGroup, OneRankNeedsNoRendezvous) {
  auto group = init_process_group();
  EXPECT_EQ(group->getRank(), 0);
  EXPECT_EQ(group->getSize(), 1);
  EXPECT_EQ(device_of(*group), c10::Device(c10::kCPU));
  at::Tensor tensor = torch::tensor({2.0, 3.0});
  all_reduce(*group, tensor);
  EXPECT_TRUE(tensor.equal(torch::tensor({2.0, 3.0})));
  destroy_process_group(group);
  EXPECT_FALSE(group);
}

TEST(InitProcessGroup, NamesAMalformedMethod) {
  EXPECT_THAT(message_of<UsageError>({.init_method = "ftp://x", .rank = 0, .world_size = 2}),
              HasSubstr("\"ftp://x\" is none of"));
  EXPECT_THAT(
      message_of<UsageError>({.init_method = "file://relative", .rank = 0, .world_size = 2}),
      HasSubstr("absolute path"));
  EXPECT_THAT(message_of<UsageError>(
                  {.init_method = "file:///no/such/folder/x", .rank = 0, .world_size = 2}),
              HasSubstr("no folder /no/such/folder"));
  EXPECT_THAT(
      message_of<UsageError>({.init_method = "tcp://localhost", .rank = 0, .world_size = 2}),
      HasSubstr("host and a port"));
  EXPECT_THAT(
      message_of<UsageError>({.init_method = "tcp://localhost:x", .rank = 0, .world_size = 2}),
      HasSubstr("\"x\""));
  EXPECT_THAT(
      message_of<UsageError>({.init_method = "tcp://localhost:70000", .rank = 0, .world_size = 2}),
      HasSubstr("1 to 65535"));
}

TEST(InitProcessGroup, NamesABadOption) {
  EXPECT_THAT(message_of<UsageError>({.backend = "mpi"}),
              HasSubstr("\"mpi\" is neither gloo nor nccl"));
  EXPECT_THAT(message_of<UsageError>({.rank = 2, .world_size = 2}),
              HasSubstr("rank 2 is outside a world of 2"));
  EXPECT_THAT(message_of<UsageError>({.rank = 1}), HasSubstr("give rank and world_size"));
  EXPECT_THAT(message_of<UsageError>({.timeout = 0ms}), HasSubstr("must be positive"));
  EXPECT_THAT(message_of<UsageError>({.rank = 0, .world_size = 2}), HasSubstr("LOCKSTEP_STORE"));
}

TEST(InitProcessGroup, SaysWhenTheOtherRankNeverComes) {
  const TemporaryFolder folder("lockstep-test");
  const auto method = "file://" + (folder.path() / "store").string();
  const auto start = std::chrono::steady_clock::now();
  const auto text = message_of<Error>(
      {.init_method = method, .rank = 0, .world_size = 2, .local_rank = 0, .timeout = 500ms});
  EXPECT_THAT(text, HasSubstr("of 2 ranks through " + method));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

TEST(InitProcessGroup, NamesAHostThatHasNoAddress) {
  for (const int rank : {0, 1}) {
    const auto start = std::chrono::steady_clock::now();
    const auto text = message_of<Error>({.init_method = "tcp://no-such-host.invalid:29500",
                                         .rank = rank,
                                         .world_size = 2,
                                         .timeout = 700ms});
    EXPECT_THAT(text, HasSubstr("the host \"no-such-host.invalid\" has no address"));
    // A look-up may take its own time without a network.
    EXPECT_LT(std::chrono::steady_clock::now() - start, 15s);
  }
}

TEST(InitProcessGroup, FindsTheLaunchersStore) {
  const TemporaryFolder folder("lockstep-test");
  const Variable store("LOCKSTEP_STORE", "file://" + (folder.path() / "store").string());
  std::thread other([] {
    auto group = init_process_group({.rank = 1, .world_size = 2, .local_rank = 1, .timeout = 20s});
    barrier(*group);
  });
  auto group = init_process_group({.rank = 0, .world_size = 2, .local_rank = 0, .timeout = 20s});
  barrier(*group);
  EXPECT_EQ(group->getSize(), 2);
  other.join();
}

TEST(InitProcessGroup, TakesRanksFromTorchrunsEnvironment) {
  const Variable rank("RANK", "0"), world("WORLD_SIZE", "1"), local("LOCAL_RANK", "0"),
      local_world("LOCAL_WORLD_SIZE", "1");
  auto group = init_process_group({.rank = -1});
  EXPECT_EQ(group->getSize(), 1);
}

// One address, so the test needs a free port: the kernel is asked for one.
int free_port() {
  const int socket_fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool bound = ::bind(socket_fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  ::close(socket_fd);
  return bound ? ntohs(address.sin_port) : 0;
}

TEST(InitProcessGroup, MeetsOverTcp) {
  const auto method = "tcp://127.0.0.1:" + std::to_string(free_port());
  std::vector<double> sums(2);
  const auto run = [&](int rank) {
    auto group = init_process_group(
        {.init_method = method, .rank = rank, .world_size = 2, .local_rank = rank, .timeout = 20s});
    at::Tensor tensor = torch::tensor({rank + 1.0});
    all_reduce(*group, tensor);
    sums[static_cast<std::size_t>(rank)] = tensor.item<double>();
    barrier(*group);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  EXPECT_EQ(sums, (std::vector<double>{3, 3}));
}

bool answers(const char* address, int port) {
  const int socket_fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, address, &to.sin_addr);
  const bool connected = ::connect(socket_fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  ::close(socket_fd);
  return connected;
}

// Two ranks that meet at this host's own name; whether the store answers at 127.0.0.2, which is
// every host's and nobody's name: a socket on all interfaces does, one on a single address does
// not.
bool store_listens_everywhere(const std::string& local_world_size) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const int port = free_port();
  const Variable rank("RANK", "0"), world("WORLD_SIZE", "2"), local("LOCAL_RANK", "0"),
      local_world("LOCAL_WORLD_SIZE", local_world_size), address("MASTER_ADDR", host.data()),
      master_port("MASTER_PORT", std::to_string(port));
  bool everywhere = false;
  const auto run = [&](int mine) {
    auto group = init_process_group({.rank = mine, .world_size = 2, .timeout = 20s});
    if (mine == 0) everywhere = answers("127.0.0.2", port);
    barrier(*group);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  return everywhere;
}

TEST(InitProcessGroup, OfOneMachineListensAtTheNamedAddressOnly) {
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(store_listens_everywhere("2"));
  EXPECT_EQ(::testing::internal::GetCapturedStderr().find("warning"), std::string::npos);
}

TEST(InitProcessGroup, OfManyMachinesListensEverywhereAndWarns) {
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(store_listens_everywhere("1"));
  const std::string said = ::testing::internal::GetCapturedStderr();
  const auto warning = said.find("no authentication");
  EXPECT_NE(warning, std::string::npos) << said;
  EXPECT_EQ(said.find("no authentication", warning + 1), std::string::npos) << said;
}

// What each of two ranks hears of the store, the other rank at another address where one is given.
std::vector<StoreOpening> openings(const std::string& served_at, const std::string& known_as,
                                   int port) {
  std::vector<StoreOpening> heard(2);
  const auto run = [&](int rank) {
    const auto host = rank == 0 ? served_at : known_as;
    try {
      auto group = init_process_group({.init_method = "tcp://" + host + ":" + std::to_string(port),
                                       .rank = rank,
                                       .world_size = 2,
                                       .local_rank = rank,
                                       .timeout = served_at == known_as ? 20'000ms : 1'000ms,
                                       .on_store = [&, rank](const StoreOpening& opening) {
                                         heard[static_cast<std::size_t>(rank)] = opening;
                                       }});
      barrier(*group);
    } catch (const Error&) {  // of a store that is not reached
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  return heard;
}

TEST(InitProcessGroup, TellsWhereTheStoreIsServed) {
  const int port = free_port();
  const auto heard = openings("localhost", "localhost", port);
  EXPECT_TRUE(heard[0].serves);
  EXPECT_FALSE(heard[1].serves);
  for (const auto& opening : heard) {
    EXPECT_EQ(opening.address, "127.0.0.1");
    EXPECT_EQ(opening.port, port);
    EXPECT_EQ(opening.error, 0);
  }
}

TEST(InitProcessGroup, TellsOfAStoreThatIsNotReached) {
  const auto heard = openings("127.0.0.2", "127.0.0.1", free_port());
  EXPECT_EQ(heard[0].address, "127.0.0.2");
  EXPECT_EQ(heard[1].address, "127.0.0.1");
  EXPECT_EQ(heard[1].error, ETIMEDOUT);
}

// Accepts connections at a port of 127.0.0.1, and never says a word. Its end lets those go that it keeps waiting.
class Listener {
 public:
  Listener() : socket_fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* at = reinterpret_cast<sockaddr*>(&address);
    const bool listens = ::bind(socket_fd_, at, size) == 0 && ::listen(socket_fd_, 8) == 0 &&
                         ::getsockname(socket_fd_, at, &size) == 0;
    port_ = listens ? ntohs(address.sin_port) : 0;
  }
  ~Listener() { ::close(socket_fd_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  int port() const { return port_; }  // 0: it could not

 private:
  int socket_fd_;
  int port_ = 0;
};

TEST(InitProcessGroup, TellsOfAPortThatIsTaken) {
  const Listener listener;
  ASSERT_GT(listener.port(), 0);
  StoreOpening heard;
  const InitOptions options{.init_method = "tcp://127.0.0.1:" + std::to_string(listener.port()),
                            .rank = 0,
                            .world_size = 2,
                            .timeout = 2s,
                            .on_store = [&](const StoreOpening& opening) { heard = opening; }};
  EXPECT_THAT(message_of<Error>(options), HasSubstr("Address already in use"));
  EXPECT_TRUE(heard.serves);
  EXPECT_EQ(heard.port, listener.port());
  EXPECT_EQ(heard.error, EADDRINUSE);
}

// It accepts connections, and never says a word.
TEST(InitProcessGroup, SaysWhenWhoAnswersIsNoStore) {
  const Listener listener;
  ASSERT_GT(listener.port(), 0);
  const auto port = std::to_string(listener.port());
  const auto begin = std::chrono::steady_clock::now();
  const InitOptions options{
      .init_method = "tcp://127.0.0.1:" + port, .rank = 1, .world_size = 2, .timeout = 1s};
  EXPECT_THAT(message_of<CollectiveError>(options),
              HasSubstr("somebody answers at 127.0.0.1, port " + port));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

TEST(InitProcessGroup, GivesTheBackendToDecorate) {
  std::atomic<int> calls{0};
  test::ThreadRanksOptions options;
  options.decorate = [&](BackendPtr backend, const StorePtr&) {
    ++calls;
    EXPECT_EQ(backend->getBackendName(), "gloo");
    return backend;
  };
  test::run_thread_ranks(options, [](ProcessGroupPtr group) { barrier(*group); });
  EXPECT_EQ(calls, 2);
}

// On the way out after an error, a program may have operations under way that no peer will join.
TEST(DestroyProcessGroup, WithPendingOperationsIsBoundedByTheTimeout) {
  const TemporaryFolder folder("lockstep-test");
  std::promise<void> over;
  const auto join = [&](int rank) {
    auto group = init_process_group({.init_method = "file://" + (folder.path() / "store").string(),
                                     .rank = rank,
                                     .world_size = 2,
                                     .local_rank = rank,
                                     .timeout = 1500ms});
    barrier(*group);
    return group;
  };
  std::thread other([&] {
    const auto group = join(1);  // is there, and joins nothing
    over.get_future().wait_for(30s);
  });
  auto group = join(0);
  for (int i = 0; i < 6; ++i) {
    std::vector<at::Tensor> tensors{torch::ones({4})};
    group->allreduce(tensors);
  }
  const auto start = std::chrono::steady_clock::now();
  destroy_process_group(group);
  const auto took = std::chrono::steady_clock::now() - start;
  over.set_value();
  other.join();
  EXPECT_GT(took, 500ms) << "nothing was pending";
  EXPECT_LT(took, 6s);
}

// What else holds the group keeps it: a model goes on, and ends it when it goes.
TEST(DestroyProcessGroup, TwiceAndUnderALiveModel) {
  const auto start = std::chrono::steady_clock::now();
  test::run_thread_ranks(2, [](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(test::make_mlp(), group);
    const auto step = [&] { model(test::inputs_of(group->getRank())).square().mean().backward(); };
    step();
    for (int round = 0; round < 2; ++round) {
      auto mine = group;
      destroy_process_group(mine);
      EXPECT_FALSE(mine);
      destroy_process_group(mine);  // nothing is left to do
    }
    step();
    barrier(*group);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
}

// As NCCL's, whose operations have come out so far as `error` says.
class EndedBackend : public c10d::Backend {
 public:
  explicit EndedBackend(c10d::ErrorType error) : Backend(0, 2), error_(error) {}
  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>("nccl", 1500ms);
  }
  void waitForPendingWorks() override { said += "waited "; }
  c10d::ErrorType getError() override { return error_; }
  void abort() override { said += "aborted"; }
  void shutdown() override { said += "shut down"; }

  std::string said;

 private:
  c10d::ErrorType error_;
};

ProcessGroupPtr nccl_group_of(const c10::intrusive_ptr<EndedBackend>& backend) {
  using Type = c10d::ProcessGroup::BackendType;
  auto group =
      c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 2);
  group->setDefaultBackend(Type::NCCL);
  group->setBackend(c10::DeviceType::CUDA, Type::NCCL, backend);
  return group;
}

TEST(DestroyProcessGroup, WaitsForNcclsOperationsFirst) {
  const auto backend = c10::make_intrusive<EndedBackend>(c10d::ErrorType::SUCCESS);
  auto group = nccl_group_of(backend);
  destroy_process_group(group);
  EXPECT_FALSE(group);
  EXPECT_EQ(backend->said, "waited shut down");
}

// Nobody may have waited for the last operation of a DistributedDataParallel.
TEST(DestroyProcessGroup, TellsOfAnOperationOfNcclThatFailed) {
  const auto backend = c10::make_intrusive<EndedBackend>(c10d::ErrorType::TIMEOUT);
  auto group = nccl_group_of(backend);
  try {
    destroy_process_group(group);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const CollectiveError& error) {
    EXPECT_THAT(error.what(), HasSubstr("an operation before it timed out"));
    EXPECT_EQ(error.operation, "destroy_process_group");
    EXPECT_FALSE(group);
    EXPECT_EQ(backend->said, "waited aborted");
    auto again = nccl_group_of(backend);  // while somebody handles it
    EXPECT_NO_THROW(destroy_process_group(again));
    EXPECT_FALSE(again);
  }
}

// A loader thread's current device is cuda:0, whatever the rank's is.
TEST(DeviceOf, IsTheGroupsAndNotTheThreads) {
  auto group =
      c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 2);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
  group->setBoundDeviceId(c10::Device(c10::kCUDA, 3));
  EXPECT_EQ(device_of(*group), c10::Device(c10::kCUDA, 3));
  EXPECT_EQ(std::async(std::launch::async, [&] { return device_of(*group); }).get(),
            c10::Device(c10::kCUDA, 3));
}

// In CTest each case is a process of its own, so that no other case has loaded anything.
bool has_loaded(const std::string& library) {
  return read_file("/proc/self/maps").find(library) != std::string::npos;
}

TEST(Libraries, AGlooProgramDoesNotLoadCuda) {
  auto group = init_process_group();
  ASSERT_TRUE(has_loaded("libtorch_cpu"));  // the test can see libraries
  EXPECT_FALSE(has_loaded("libtorch_cuda"));
}

TEST(Nccl, IsRefusedWhereItsLibraryIsMissing) {
  const Variable library("LOCKSTEP_NCCL_LIBRARY", "/no/such/library.so");
  EXPECT_THROW(
      {
        try {
          load_backend("nccl");
        } catch (const UnavailableError& error) {
          EXPECT_THAT(error.what(), HasSubstr("/no/such/library.so"));
          throw;
        }
      },
      UnavailableError);
}

TEST(Nccl, IsRefusedWithMoreRanksThanGpus) {
  // No machine has so many; with a library that is not built the reason is another, and it is
  // refused too.
  const InitOptions options{.backend = "nccl",
                            .init_method = "file:///tmp/never-opened",
                            .rank = 0,
                            .world_size = 4096,
                            .timeout = 1s};
  const auto start = std::chrono::steady_clock::now();
  const auto text = message_of<UnavailableError>(options);
  EXPECT_THAT(text, ::testing::AnyOf(HasSubstr("4096 ranks on this machine need a GPU each"),
                                     HasSubstr("not part of this build")));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
}

}  // namespace
}  // namespace lockstep
