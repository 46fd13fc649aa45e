#include <lockstep/base/error.h>
#include <lockstep/gpu/require_nccl.h>

#include <cstdlib>
#include <map>

namespace lockstep::gpu {
namespace {

// CUDA 13 has no kernels for what is older than Turing.
constexpr int kCudaWithoutVolta = 13000;
constexpr int kTuring = 75;

// "1 rank", "2 ranks"
std::string counted(std::size_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string cuda_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Since 2.9 a code is 10000 major + 100 minor + patch; before, 1000 major + 100 minor + patch.
int nccl_major(int code) {
  return code < 10000 ? code / 1000 : code / 10000;
}
int nccl_minor(int code) {
  return code < 10000 ? code % 1000 / 100 : code % 10000 / 100;
}
std::string nccl_text(int code) {
  return std::to_string(nccl_major(code)) + "." + std::to_string(nccl_minor(code)) + "." +
         std::to_string(code % 100);
}

// What CUDA_VISIBLE_DEVICES has to do with the number of GPUs.
std::string because_of(const Facts& facts) {
  if (!facts.visible_devices) return "";
  return ", of those that CUDA_VISIBLE_DEVICES=" + *facts.visible_devices + " lets it see";
}

std::optional<Problem> no_gpu(const Facts& facts) {
  if (!facts.driver.missing.empty())
    return Problem{
        "the NVIDIA driver cannot be asked: " + facts.driver.missing,
        "install one that works; in a container, start it with its GPUs (docker run --gpus "
        "all); or use "
        "the backend gloo, which needs none"};
  if (!facts.driver.gpus.empty()) return std::nullopt;
  if (facts.visible_devices)
    return Problem{"CUDA_VISIBLE_DEVICES=" + *facts.visible_devices + " hides every GPU from here",
                   "unset it, or name GPUs that there are; or use the backend gloo"};
  return Problem{"the NVIDIA driver is there, and sees no GPU",
                 "look at what nvidia-smi says; or use the backend gloo, which needs none"};
}

std::optional<Problem> old_driver(const Facts& facts) {
  const int has = facts.driver.cuda_version, needs = facts.built_with.cuda;
  // A driver runs every minor version of its major one.
  if (needs == 0 || has / 1000 >= needs / 1000) return std::nullopt;
  return Problem{"the NVIDIA driver runs CUDA up to " + cuda_text(has) +
                     ", and this is built for CUDA " + cuda_text(needs),
                 "install a driver for CUDA " + std::to_string(needs / 1000) +
                     " or newer, or a LibTorch for CUDA " + std::to_string(has / 1000)};
}

// A program runs on a newer minor version than its header's, not on an older one, whose structures and functions
// are fewer. Patches differ in neither.
std::optional<Problem> wrong_nccl(const Facts& facts) {
  const int header = facts.built_with.nccl, library = facts.nccl_library;
  if (header == 0 || library == 0) return std::nullopt;
  const bool other_major = nccl_major(header) != nccl_major(library);
  if (!other_major && nccl_minor(library) >= nccl_minor(header)) return std::nullopt;
  return Problem{"NCCL " + nccl_text(library) + " is loaded, and this is built for NCCL " +
                     nccl_text(header) +
                     (other_major ? ", another major version" : ", which has more than it"),
                 "build with the nccl.h of the NCCL that LibTorch brings (cmake "
                 "-DLOCKSTEP_NCCL_INCLUDE=FOLDER), or install NCCL " +
                     std::to_string(nccl_major(header)) + "." + std::to_string(nccl_minor(header)) +
                     " or newer for it"};
}

std::optional<Problem> too_few(const Facts& facts, const std::vector<LocalRank>& ranks) {
  const auto gpus = facts.driver.gpus.size();
  for (const auto& rank : ranks) {
    if (rank.device < static_cast<int>(gpus)) continue;
    return Problem{"this process sees " + counted(gpus, "GPU") + because_of(facts) +
                       ", and local rank " + std::to_string(rank.local_rank) +
                       " is to use cuda:" + std::to_string(rank.device),
                   "start at most as many ranks as GPUs; to see whether results are right, let "
                   "ranks share a GPU (--share-gpu, InitOptions::share_gpu); where each rank has a "
                   "CUDA_VISIBLE_DEVICES of its own, give InitOptions::local_rank = 0; or use the "
                   "backend gloo"};
  }
  return std::nullopt;
}

const Gpu* gpu_of(const Facts& facts, const LocalRank& rank) {
  const auto device = static_cast<std::size_t>(rank.device);
  return device < facts.driver.gpus.size() ? &facts.driver.gpus[device] : nullptr;
}

std::optional<Problem> the_same_gpu(const Facts& facts, const std::vector<LocalRank>& ranks) {
  std::map<std::string, int> taken;
  for (const auto& rank : ranks) {
    const Gpu* gpu = gpu_of(facts, rank);
    if (gpu == nullptr || gpu->uuid.empty()) continue;
    const auto [first, is_new] = taken.emplace(gpu->uuid, rank.local_rank);
    if (is_new) continue;
    return Problem{"local ranks " + std::to_string(first->second) + " and " +
                       std::to_string(rank.local_rank) + " are to use the same GPU, " + gpu->name +
                       " (" + gpu->uuid + ")",
                   "give each rank a GPU of its own: cuda:LOCAL_RANK; or let them share it for a "
                   "test of results (--share-gpu, InitOptions::share_gpu)"};
  }
  return std::nullopt;
}

std::optional<Problem> old_gpu(const Facts& facts, const std::vector<LocalRank>& ranks) {
  if (facts.built_with.cuda < kCudaWithoutVolta) return std::nullopt;
  for (const auto& rank : ranks) {
    const Gpu* gpu = gpu_of(facts, rank);
    if (gpu == nullptr || gpu->major == 0 || gpu->major * 10 + gpu->minor >= kTuring) continue;
    return Problem{gpu->name + " (cuda:" + std::to_string(rank.device) +
                       ") has compute capability " + std::to_string(gpu->major) + "." +
                       std::to_string(gpu->minor) + ", and CUDA 13 has no code below 7.5",
                   "use a newer GPU, or a LibTorch for CUDA 12"};
  }
  return std::nullopt;
}

}  // namespace

Facts facts_here(int nccl_library) {
  Facts facts{ask_driver(), built_with(), nccl_library, std::nullopt};
  // An empty one counts: it hides every GPU.
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) facts.visible_devices = visible;
  return facts;
}

int device_of(int local_rank, int gpus, bool share_gpu) {
  return share_gpu && gpus > 0 ? local_rank % gpus : local_rank;
}

std::vector<LocalRank> local_ranks(int local_world_size, int gpus, bool share_gpu) {
  std::vector<LocalRank> ranks;
  for (int rank = 0; rank < local_world_size; ++rank)
    ranks.push_back({rank, device_of(rank, gpus, share_gpu)});
  return ranks;
}

std::vector<Problem> problems(const Facts& facts, const std::vector<LocalRank>& ranks,
                              bool share_gpu) {
  std::vector<Problem> found;
  const auto add = [&](const std::optional<Problem>& problem) {
    if (problem) found.push_back(*problem);
  };
  add(wrong_nccl(facts));
  if (const auto problem = no_gpu(facts)) {
    found.push_back(*problem);
    return found;
  }
  add(old_driver(facts));
  add(too_few(facts, ranks));
  if (!share_gpu) add(the_same_gpu(facts, ranks));
  add(old_gpu(facts, ranks));
  return found;
}

void require_nccl(const Facts& facts, const std::vector<LocalRank>& ranks, bool share_gpu) {
  const auto found = problems(facts, ranks, share_gpu);
  if (found.empty()) return;
  std::string text = "backend nccl: " + counted(ranks.size(), "rank") + " on this machine need" +
                     (ranks.size() == 1 ? "s a GPU" : " a GPU each");
  for (const auto& problem : found) text += "; " + problem.what + ": " + problem.to_do;
  throw UnavailableError(text);
}

std::string sharing_text(int ranks, int gpus) {
  return "note: " + std::to_string(ranks) + " ranks share " +
         counted(static_cast<std::size_t>(gpus), "GPU") +
         " (share_gpu): they take turns and talk through sockets, so results are right and times "
         "say nothing";
}

}  // namespace lockstep::gpu
