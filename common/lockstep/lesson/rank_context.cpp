#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/outcome.h>
#include <lockstep/lesson/rank_context.h>
#include <lockstep/record/checked_backend.h>
#include <lockstep/record/device_recorder.h>
#include <lockstep/record/observed_backend.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

namespace lockstep {

namespace {

// A process that ssh or a shell's loop has started has none of a launcher's variables.
void forget_the_launcher() {
  for (const auto* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) unsetenv(name);
}

// Processes without a group have nothing else to wait for each other by.
void wait_until_all_have_begun(const RunSettings& settings) {
  const auto mark_of = [&](int rank) {
    return settings.folder / ("begun_" + std::to_string(rank));
  };
  write_file(mark_of(settings.rank), "");
  const auto until = std::chrono::steady_clock::now() + settings.operation_timeout;
  for (int rank = 0; rank < settings.world_size; ++rank)
    while (!std::filesystem::exists(mark_of(rank))) {
      if (std::chrono::steady_clock::now() > until)
        throw Error("process " + std::to_string(rank) + " has not begun");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

}  // namespace

RankContext::RankContext(const RunSettings& settings, Participants participants)
    : settings_(settings) {
  // A rank writes one trace; a process that drives devices writes one for each.
  const bool devices = participants == Participants::devices;
  const int first = devices ? 0 : rank();
  const int last = devices ? world_size() - 1 : rank();
  for (int participant = first; participant <= last; ++participant) {
    writers_.push_back(std::make_shared<trace::Writer>(
        settings.folder,
        trace::Participant{participant, world_size(), devices ? "device" : "process"}));
  }
  if (settings.alone) {
    forget_the_launcher();
    wait_until_all_have_begun(settings);
  }
  if (settings.attempt)
    writers_.front()->record(trace::Attempt{
        *settings.attempt, environment_int("TORCHELASTIC_MAX_RESTARTS").value_or(0)});
  load_backend(settings.backend);  // before anything of torch is called
  if (devices)
    observe(device_recorder_ =
                std::make_shared<record::DeviceRecorder>(writers_, settings.transfers));
  else
    observe(recorder_ = std::make_shared<record::Recorder>(writers_.front()));
  torch::manual_seed(settings.seed);
  if (participants == Participants::processes) join(settings.operation_timeout);
}

InitOptions RankContext::init_options(std::chrono::milliseconds timeout) {
  InitOptions options;
  options.backend = settings_.backend;
  if (settings_.alone) options.rank = 0, options.world_size = 1;
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

ProcessGroupPtr RankContext::init_process_group(const InitOptions& options) {
  auto all = init_options(options.timeout);
  all.init_method = options.init_method;
  all.on_store = record::tell_of_store(writers_.front());
  auto group = lockstep::init_process_group(all);
  device_ = device_of(*group);
  return group;
}

void RankContext::destroy_process_group(ProcessGroupPtr& group) {
  lockstep::destroy_process_group(group);
}

void RankContext::join(std::chrono::milliseconds timeout) {
  group_ = init_process_group({.timeout = timeout});
}

ProcessGroupPtr RankContext::new_group(const std::vector<int>& ranks,
                                       std::chrono::milliseconds timeout) {
  return lockstep::new_group(group_, ranks, init_options(timeout));
}

RankContext::~RankContext() = default;

void RankContext::intent(const trace::Intent& intent) {
  record::intent(intent);
}

void RankContext::metric(const std::string& name, const std::string& phase, double sum,
                         double count) {
  record::metric(name, phase, sum, count);
}

void RankContext::decision(const std::string& name, std::int64_t value) {
  record::decision(name, value);
}

void RankContext::random_numbers(const std::vector<std::int64_t>& ids, const at::Tensor& numbers) {
  record::random_numbers(ids, numbers);
}

void RankContext::training_state(const std::string& moment,
                                 const ValueOf<at::Tensor>::Dict& parts) {
  record::training_state(moment, parts);
}

void RankContext::write() {
  write_outcome(settings_.folder / ("rank_" + std::to_string(settings_.rank) + ".outcome.json"),
                outcome_);
}

void RankContext::leave() {
  if (group_) {
    barrier(*group_);
    destroy_process_group(group_);
  }
  recorder_.reset();
  device_recorder_.reset();
  writers_.clear();  // the trace ends here, in order
}

}  // namespace lockstep
