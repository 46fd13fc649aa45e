#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/outcome.h>
#include <lockstep/lesson/rank_context.h>
#include <lockstep/record/checked_backend.h>
#include <lockstep/record/observed_backend.h>

#include <algorithm>
#include <numeric>

namespace lockstep {

namespace {

std::vector<int> all_ranks(int world_size) {
  std::vector<int> ranks(static_cast<std::size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

RankContext::RankContext(const RunSettings& settings, Participants participants)
    : settings_(settings) {
  // A rank writes one trace; a process that drives devices writes one for each.
  const bool devices = participants == Participants::devices;
  const int first = devices ? 0 : settings.rank;
  const int last = devices ? settings.world_size - 1 : settings.rank;
  for (int participant = first; participant <= last; ++participant) {
    writers_.push_back(std::make_shared<trace::Writer>(
        settings.folder,
        trace::Participant{participant, settings.world_size, devices ? "device" : "process"}));
    probes_.push_back(std::make_unique<record::Probes>(writers_.back()));
  }
  if (settings.attempt)
    writers_.front()->record(trace::Attempt{
        *settings.attempt, environment_int("TORCHELASTIC_MAX_RESTARTS").value_or(0)});
  load_backend(settings.backend);  // before anything of torch is called
  torch::manual_seed(settings.seed);
  if (participants == Participants::processes) join(settings.operation_timeout);
}

InitOptions RankContext::init_options(std::chrono::milliseconds timeout) {
  InitOptions options;
  options.backend = settings_.backend;
  options.share_gpu = settings_.share_gpu;
  options.timeout = timeout;
  options.decorate = [writer = writers_.front(), check = settings_.check](BackendPtr backend,
                                                                          const StorePtr& store) {
    if (check) backend = record::check(std::move(backend), store);
    return record::observe(std::move(backend), writer);
  };
  return options;
}

std::chrono::milliseconds RankContext::patience() const {
  using std::chrono::milliseconds;
  const milliseconds patience(settings_.backend == "nccl" ? 20'000 : 2'000);
  return std::min(patience, settings_.operation_timeout);
}

std::vector<c10::Device> RankContext::devices() const {
  std::vector<c10::Device> found(static_cast<std::size_t>(world_size()), c10::kCPU);
  if (settings_.backend != "nccl") return found;
  const int there = static_cast<int>(torch::cuda::device_count());
  if (there == 0 || (there < world_size() && !settings_.share_gpu))
    throw UnavailableError("this run drives " + std::to_string(world_size()) +
                           " GPUs, and there are " + std::to_string(there) +
                           ": ask for fewer with --world-size, or let one be several with "
                           "--share-gpu; or use the backend gloo, which needs none");
  for (int i = 0; i < world_size(); ++i)
    found[static_cast<std::size_t>(i)] =
        c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(i % there));
  return found;
}

void RankContext::tell(const std::string& action, const std::string& name,
                       const std::vector<int>& ranks) {
  writers_.front()->record(trace::Group{action, name, {ranks.begin(), ranks.end()}});
}

ProcessGroupPtr RankContext::init_process_group(const InitOptions& options) {
  const auto ranks = all_ranks(settings_.world_size);
  auto all = init_options(options.timeout);
  all.init_method = options.init_method;
  all.on_store = record::tell_of_store(writers_.front());
  tell("join", "0", ranks);
  auto group = lockstep::init_process_group(all);
  device_ = device_of(*group);
  tell("joined", "0", ranks);
  return group;
}

void RankContext::destroy_process_group(ProcessGroupPtr& group) {
  tell("leave", "0", all_ranks(settings_.world_size));
  lockstep::destroy_process_group(group);
}

void RankContext::join(std::chrono::milliseconds timeout) {
  group_ = init_process_group({.timeout = timeout});
}

ProcessGroupPtr RankContext::new_group(const std::vector<int>& ranks,
                                       std::chrono::milliseconds timeout) {
  const auto name = std::to_string(++groups_);
  tell("join", name, ranks);
  auto group = lockstep::new_group(group_, ranks, init_options(timeout));
  tell("joined", name, ranks);
  return group;
}

RankContext::~RankContext() = default;

record::Probes& RankContext::probes(int device) {
  return *probes_.at(device < 0 ? 0 : static_cast<std::size_t>(device));
}

void RankContext::write() {
  write_outcome(settings_.folder / ("rank_" + std::to_string(settings_.rank) + ".outcome.json"),
                outcome_);
}

void RankContext::leave() {
  probes_.clear();
  if (group_) {
    barrier(*group_);
    destroy_process_group(group_);
  }
  writers_.clear();  // the trace ends here, in order
}

}  // namespace lockstep
