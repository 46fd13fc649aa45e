// Lesson 10, part "rendezvous": how the ranks find each other, and who leaves last.
//
// Concept:  rank 0 serves a store at MASTER_ADDR and MASTER_PORT (under torchrun the agent does),
//           and all ranks connect to it. The port must be free, the address one that all reach, and
//           no rank may use the store after rank 0 has left: it ends with rank 0.
// Symptom:  "address already in use", as soon as two jobs with one port share a machine. A
//           connection that times out, where the host's name stands for an interface that others do
//           not reach. An error at the end of a good run, on ranks that still use the store.
#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/launch.h>
#include <lockstep/lesson/batches.h>
#include <lockstep/train/dataset.h>
#include <lockstep/train/models.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "parts.h"

namespace {

using namespace lockstep;

// ---- a seam: what the ranks find on the machine ----

namespace fs = std::filesystem;

constexpr std::chrono::seconds kMost{30};  // that a rank waits for another here

// A TCP port of 127.0.0.1 and 127.0.0.2 that nobody else is given while this lives, and that this
// program may still listen at.
class Port {
 public:
  Port() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t size = sizeof(address);
    auto* at = reinterpret_cast<sockaddr*>(&address);
    if (fd_ < 0 || ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        ::bind(fd_, at, size) != 0 || ::getsockname(fd_, at, &size) != 0)
      throw Error(std::string("no free port: ") + std::strerror(errno));
    number_ = ntohs(address.sin_port);
  }
  ~Port() { ::close(fd_); }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  int number() const { return number_; }

 private:
  int fd_;
  int number_ = 0;
};

// The store of a job with one rank, at that port of 127.0.0.1.
StorePtr serve_at(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (fd < 0 || ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(fd, SOMAXCONN) != 0)
    throw Error(std::string("the other job cannot serve: ") + std::strerror(errno));
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = true;
  options.masterListenFd = fd;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

enum class OtherJob { runs, has_ended };

// Rank 0 of this job also plays another job, whose store it serves; the other ranks learn where
// from it. Throws UnavailableError where the ranks are not all on one machine.
class Machine {
 public:
  Machine(const RankContext& context, OtherJob other_job) {
    const auto place = launch::placement_from_environment().value_or(launch::Placement{});
    if (place.local_world_size < place.world_size)
      throw UnavailableError("this part's ranks look for free ports and processes on one machine");
    const auto file = context.folder() / "machine";
    if (context.rank() == 0) {
      sockets_ = std::make_unique<Sockets>();
      if (other_job == OtherJob::runs) sockets_->other_job = serve_at(sockets_->other.number());
      std::ofstream(file.string() + ".new")
          << sockets_->free.number() << " " << sockets_->other.number() << " " << ::getpid()
          << "\n";
      fs::rename(file.string() + ".new", file);
    }
    const auto until = std::chrono::steady_clock::now() + kMost;
    while (!fs::exists(file)) {
      if (std::chrono::steady_clock::now() > until) throw Error("rank 0 does not say which ports");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::ifstream(file) >> free_port_ >> other_jobs_port_ >> rank_zero_;
  }

  int free_port() const { return free_port_; }
  int other_jobs_port() const { return other_jobs_port_; }
  void until_rank_zero_is_gone() const {
    const int fd = static_cast<int>(::syscall(SYS_pidfd_open, rank_zero_, 0));
    if (fd < 0) return;  // it is gone
    pollfd until{.fd = fd, .events = POLLIN, .revents = 0};
    ::poll(&until, 1, std::chrono::milliseconds(kMost).count());
    ::close(fd);
  }

 private:
  struct Sockets {
    Port free, other;
    StorePtr other_job;
  };
  std::unique_ptr<Sockets> sockets_;  // rank 0's
  int free_port_ = 0, other_jobs_port_ = 0;
  int rank_zero_ = 0;  // its process id
};

// ---- the part ----

std::string word_of(int rank) {
  return "loss_of_rank_" + std::to_string(rank);
}

// Reports this rank's loss through the store, and waits for the store's answer.
void report(RankContext& context, c10d::Store& store, double loss) {
  const auto tell_use = [&](int error) {
    context.told().tell(trace::StoreCall{"use", "", 0, error});
  };
  try {
    store.set(word_of(context.rank()), std::to_string(loss));
    store.add("reported", 1);
  } catch (const c10::DistNetworkError&) {
    tell_use(ECONNRESET);
    throw Error("rank " + std::to_string(context.rank()) +
                " cannot report: the store is gone, and rank 0 with it");
  }
  tell_use(0);
  add_figure(context, "reported", 1);
}

// A near miss: no rank destroys the group; rank 0, which serves the store, leaves last.
void wait_for_reports(RankContext& context, c10d::Store& store) {
  for (int rank = 1; context.rank() == 0 && rank < context.world_size(); ++rank)
    store.wait({word_of(rank)});
}

// The work: the loss of an untrained model on this rank's part of the data. Of all ranks' the mean
// is written down.
double work(RankContext& context, c10d::ProcessGroup& group) {
  const auto data = fashion_mnist_or_synthetic(Split::test, 64L * context.world_size());
  const auto batch =
      take(data, share_of(context.rank(), context.world_size(), all_ids(data.size())));
  auto loss = torch::cross_entropy_loss(Mlp(784, 32, 10)->forward(batch.inputs), batch.targets)
                  .detach()
                  .to(context.device());
  const double own = loss.item<double>();
  all_reduce(group, loss);
  context.outcome().losses.push_back(loss.item<double>() / context.world_size());
  return own;
}

void meet(RankContext& context, const Fault& fault) {
  // Another job has its store on this machine.
  const auto other = fault("near-miss-other-job-has-ended") ? OtherJob::has_ended : OtherJob::runs;
  const Machine machine(context, other);

  int port = fault("fixed-port") ? machine.other_jobs_port() : machine.free_port();
  if (fault("near-miss-other-job-has-ended")) port = machine.other_jobs_port();
  std::string address = "127.0.0.1";
  if (fault("wrong-network-interface") && context.rank() == 0)
    address = "127.0.0.2";  // To rank 0 its own name stands for another of its interfaces.
  if (fault("near-miss-another-interface-for-all")) address = "127.0.0.2";
  auto group =
      context.init_process_group({.init_method = "tcp://" + address + ":" + std::to_string(port),
                                  .timeout = context.patience()});
  const auto store = group->getStore();
  const double loss = work(context, *group);

  if (fault("group-never-destroyed")) {
    // Rank 0 leaves main once it has reported, and its store with it. The others are slower.
    if (context.rank() != 0) machine.until_rank_zero_is_gone();
    report(context, *store, loss);
  } else {
    report(context, *store, loss);
    if (fault("near-miss-rank-zero-leaves-last")) return wait_for_reports(context, *store);
    barrier(*group);
    context.destroy_process_group(group);
  }
}

Measured ranks_that_reported(const Outcomes& outcomes) {
  double reported = 0;
  for (const auto& outcome : outcomes) reported += outcome.figures.count("reported") ? 1 : 0;
  return {.expected = static_cast<double>(outcomes.size()), .observed = reported};
}

}  // namespace

Part rendezvous_part() {
  const Oracle oracle{"ranks that worked, and reported it", ranks_that_reported};
  return {
      .name = "rendezvous",
      .run = meet,
      .broken = {{.slug = "fixed-port",
                  .what = "two jobs on one machine use the same MASTER_PORT",
                  .oracle = oracle,
                  .crashes = true},
                 {.slug = "wrong-network-interface",
                  .what = "rank 0 serves its store on an interface that the others do not reach",
                  .oracle = oracle,
                  .crashes = true},
                 {.slug = "group-never-destroyed",
                  .what = "rank 0 leaves without destroying the group, and the others still work",
                  .oracle = oracle,
                  .crashes = true}},
      .near_misses = {{.name = "near-miss-other-job-has-ended",
                       .slug = "fixed-port",
                       .naive_check = "MASTER_PORT is a number that another job uses too"},
                      {.name = "near-miss-another-interface-for-all",
                       .slug = "wrong-network-interface",
                       .naive_check = "the store is on another interface than the ranks"},
                      {.name = "near-miss-rank-zero-leaves-last",
                       .slug = "group-never-destroyed",
                       .naive_check = "no rank calls destroy_process_group"}},
      .participants = Participants::strangers};
}
