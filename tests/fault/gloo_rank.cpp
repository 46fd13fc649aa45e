// A rank of a Gloo job that misbehaves as its script says (script.h), or the store of such a job.
//
//   gloo_rank SCRIPT...      as a rank
//   gloo_rank serve FILE     a TCP store on 127.0.0.1, until it is ended; its port is written to the file, and
//                            FILE.met when a rank has left a word in it
//
// With LOCKSTEP_FAULT_BACKEND=nccl it is no Gloo job; LOCKSTEP_FAULT_SHARE_GPU=1 lets its ranks share GPUs, and
// LOCKSTEP_FAULT_LOCAL_RANK names a rank's own. Every operation has LOCKSTEP_FAULT_TIMEOUT_MS; every collective is
// recorded in the job's folder.
#include <arpa/inet.h>
#include <fcntl.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/dist/process_group.h>
#include <lockstep/launch/launch.h>
#include <lockstep/record/observed_backend.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "script.h"

namespace {

using namespace lockstep;

ProcessGroupPtr group;
std::shared_ptr<trace::Writer> writer;
c10::intrusive_ptr<c10d::Work> begun;

InitOptions options() {
  InitOptions all;
  all.backend = environment("LOCKSTEP_FAULT_BACKEND").value_or("gloo");
  all.share_gpu = environment_int("LOCKSTEP_FAULT_SHARE_GPU").value_or(0) != 0;
  all.local_rank = environment_int("LOCKSTEP_FAULT_LOCAL_RANK").value_or(-1);
  all.timeout = std::chrono::milliseconds(environment_int("LOCKSTEP_FAULT_TIMEOUT_MS").value());
  all.decorate = [](BackendPtr backend, const StorePtr&) {
    return record::observe(std::move(backend), writer);
  };
  return all;
}

void join(const std::string&) {
  group = init_process_group(options());
}

at::Tensor ones() {
  return torch::ones({4}, device_of(*group));
}

void reduce(const std::string&) {
  auto tensor = ones();
  all_reduce(*group, tensor);
}

void sum(const std::string&) {
  auto tensor = ones() * (group->getRank() + 1);
  all_reduce(*group, tensor);
  const int size = group->getSize();
  if (!tensor.cpu().equal(torch::full({4}, size * (size + 1) / 2.0F)))
    throw Error("ones times rank + 1 do not add up");
}

void copy(const std::string&) {
  auto tensor = ones();
  broadcast(*group, tensor, 0);
}

void begin(const std::string&) {
  static std::vector<at::Tensor> tensors{ones()};
  begun = group->allreduce(tensors);
}

void split(const std::string&) {
  std::vector<int> ranks(static_cast<std::size_t>(group->getSize()));
  std::iota(ranks.begin(), ranks.end(), 0);
  new_group(group, ranks, options());
}

std::filesystem::path rendezvous_file() {
  return environment("LOCKSTEP_STORE").value().substr(std::string("file://").size());
}

void expect_fresh(const std::string&) {
  if (std::filesystem::exists(rendezvous_file())) throw Error("somebody has been here before");
}

// The first time only: leaves what the ranks met through where the next attempt's will be, and fails.
void fail_once(const std::string& next_folder) {
  if (environment("TORCHELASTIC_RESTART_COUNT") != "0") return;
  std::filesystem::create_directories(next_folder);
  std::filesystem::copy_file(rendezvous_file(), next_folder + "/store");
  std::_Exit(5);
}

// What a writer leaves in the file that the ranks meet through when it is killed: half a record.
void tear(const std::string& marker) {
  const auto path = rendezvous_file();
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  const std::uint32_t size = 40;
  if (fd < 0 || flock(fd, LOCK_EX) != 0 || write(fd, &size, sizeof size) != sizeof size ||
      write(fd, "/half", 5) != 5)
    throw Error("cannot write " + path.string());
  close(fd);  // which unlocks it, as the writer's death does
  write_file(marker, "torn");
}

fault::Steps steps() {
  auto all = fault::common_steps();
  all["init"] = join;
  all["allreduce"] = reduce;
  all["sum"] = sum;  // an all-reduce whose result is looked at
  all["broadcast"] = copy;
  all["begin"] = begin;  // an all-reduce, and does not wait for it
  all["new_group"] = split;
  all["tear"] = tear;
  all["fresh"] = expect_fresh;
  all["fail_once"] = fail_once;
  all["leave"] = [](const std::string&) {
    destroy_process_group(group);
    writer.reset();
  };
  return all;
}

int serve(const std::string& file) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd, SOMAXCONN) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw Error("cannot listen");
  c10d::TCPStoreOptions how;
  how.port = ntohs(address.sin_port);
  how.isServer = true;
  how.waitWorkers = false;
  how.masterListenFd = fd;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", how);
  write_file(file, std::to_string(how.port));
  // The first key says that somebody has connected.
  while (store->getNumKeys() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  write_file(file + ".met", "");
  fault::hang();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    const auto place = launch::placement_from_environment();
    if (!place && arguments.size() == 2 && arguments[0] == "serve") return serve(arguments[1]);
    if (!place) throw UsageError("usage: gloo_rank SCRIPT... as a rank, or gloo_rank serve FILE");
    load_backend(options().backend);  // before anything of torch is called
    torch::set_num_threads(1);
    writer = std::make_shared<trace::Writer>(
        std::filesystem::path(environment("LOCKSTEP_ERROR_FILE").value()).parent_path(),
        trace::Participant{.rank = place->rank, .world_size = place->world_size});
    fault::run_script(steps(), arguments, place->rank);
    std::_Exit(0);  // nobody waits for what the script left under way
  } catch (const std::exception& error) {
    launch::report_error(error);
    std::cerr << error.what() << std::endl;
    std::_Exit(3);
  }
}
