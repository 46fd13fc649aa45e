// What PyTorch's NCCL backend and NCCL itself read from the environment, and have no option for. Free of torch.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

namespace lockstep::gpu {

struct NcclJob {
  int rank = 0;
  bool one_machine = true;  // all ranks are on this one
  bool share_gpu = false;   // ranks may have one GPU, and have where there are more ranks than GPUs
  int nccl_library = 0;     // ncclGetVersion's
  int local_ranks = 0;      // of this machine; 0: not known, and share_gpu decides alone
  int gpus = 0;             // that they see
};

// The value that a variable has now; nothing where it is unset or empty.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

// Pure: the variables to set before a group is made, and their values. What the user has set is not among them.
std::map<std::string, std::string> nccl_environment(const NcclJob& job, const Lookup& users);

// Sets them in this process's environment.
void set_nccl_environment(const NcclJob& job);

}  // namespace lockstep::gpu
