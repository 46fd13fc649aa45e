#include <lockstep/base/environment.h>
#include <lockstep/gpu/nccl_environment.h>

#include <cstdlib>
#include <string_view>

namespace lockstep::gpu {
namespace {

using Variables = std::map<std::string, std::string>;

// From 2.30 on NCCL can be told that ranks share a GPU.
constexpr int kSharesByItself = 23000;

// As PyTorch reads it.
bool is_true(const std::string& value) {
  return std::string_view("1yYtT").find(value.front()) != std::string_view::npos;
}

// PyTorch reads these when a group is made.
void add_error_handling(Variables& variables, const Lookup& users) {
  // 2, clean up only: when an operation fails or its time is over, the watchdog aborts the communicator. That ends the
  // kernel that spins on the GPU, so whoever waits for the device goes on, and the next operation throws. PyTorch's
  // own default (3) ends the process a minute later: the rank that was left waiting would look like the one that died.
  // 0 would leave the device spinning for ever.
  variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "2";
  // TORCH_NCCL_BLOCKING_WAIT stays unset: no watchdog runs with it. DDP waits through futures, which do not block
  // on the host with it either, so nobody would abort its operations; and it is the watchdog that tells the trace
  // when an operation has ended. The collectives of process_group.h block by giving wait() their timeout.
  //
  // A CUDA error that the watchdog meets (a kernel of the program's own has failed) is thrown where the program next
  // calls CUDA. Rethrown in the watchdog's thread it would abort the process before anybody could say so.
  variables["TORCH_NCCL_RETHROW_CUDA_ERRORS"] = "0";
  // No dump of PyTorch's flight recorder. For it the watchdog, with its locks held, waits four times this long before
  // it aborts (a minute); and after it the heartbeat monitor sleeps 8 minutes, the group's destructor with it, and
  // aborts the process. Whoever asks for dumps gets PyTorch's waiting too.
  variables["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0";
  if (!is_true(users("TORCH_NCCL_DUMP_ON_TIMEOUT").value_or("0")))
    variables["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] = "0";
  // The heartbeat monitor (TORCH_NCCL_ENABLE_MONITORING) stays: it ends a process whose watchdog has not moved for 8
  // minutes, which is to say where ncclCommAbort itself hangs. A supervisor has told of the rank by then.
}

void add_sharing(Variables& variables, const NcclJob& job) {
  if (job.nccl_library >= kSharesByItself) {
    variables["NCCL_MULTI_RANK_GPU_ENABLE"] = "1";
    return;
  }
  // NCCL refuses two ranks with one GPU on one host, so each rank is a host of its own. What hosts have between
  // them is a network: plain sockets, since InfiniBand or a plugin would not be there or not be on lo.
  variables["NCCL_HOSTID"] = "lockstep-rank-" + std::to_string(job.rank);
  if (job.one_machine) variables["NCCL_NET"] = "Socket";
  // Nor are these hosts nodes of one NVLink fabric, whatever the GPU says.
  variables["NCCL_MNNVL_ENABLE"] = "0";
}

}  // namespace

std::map<std::string, std::string> nccl_environment(const NcclJob& job, const Lookup& users) {
  Variables variables;
  add_error_handling(variables, users);
  if (job.one_machine) variables["NCCL_SOCKET_IFNAME"] = "lo";
  const bool more_than_gpus = job.local_ranks == 0 || job.local_ranks > job.gpus;
  if (job.share_gpu && more_than_gpus) add_sharing(variables, job);
  std::erase_if(variables, [&](const auto& each) { return users(each.first).has_value(); });
  return variables;
}

void set_nccl_environment(const NcclJob& job) {
  for (const auto& [name, value] : nccl_environment(job, environment))
    ::setenv(name.c_str(), value.c_str(), 1);  // one that is set to nothing counts as unset
}

}  // namespace lockstep::gpu
