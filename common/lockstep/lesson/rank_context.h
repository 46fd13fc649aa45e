// What a lesson's run is given: where it stands, what it may use, and where it writes what it saw.
#pragma once

#include <lockstep/dist/process_group.h>
#include <lockstep/record/recorder.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

namespace record {
class DeviceRecorder;
}

// What one rank saw, for the oracles and the report. Plain numbers only.
struct Outcome {
  std::vector<double> losses;  // this rank's mean training loss, per epoch
  // What one process loses on the same global batches, per epoch; empty where the run trains none.
  std::vector<double> reference_losses;
  std::vector<double> accuracy;  // 0 to 1, as the program holds it, per epoch
  std::map<std::string, std::vector<double>> figures;
  std::map<std::string, std::vector<std::vector<std::int64_t>>>
      ids;  // per pass: the ids drawn, in order
};

struct RunSettings {
  std::string variant;
  int rank = 0;
  int world_size = 1;
  bool alone = false;  // nobody tells this process its rank: it is rank 0 of 1 to itself
  std::uint64_t seed = 0;
  bool full = false;  // the article's own size, not the quick one
  std::chrono::milliseconds operation_timeout{30'000};
  std::string backend = "gloo";
  bool share_gpu = false;        // several ranks may have one GPU
  bool check = false;            // compare each collective across ranks before it runs
  bool transfers = true;         // record what moves between the devices of one process
  std::filesystem::path folder;  // where this run's files go
  // Where the job may be started again: which attempt this is, and where all attempts' files go.
  std::optional<int> attempt;
  std::filesystem::path job_folder;
};

enum class Participants;

class RankContext {
 public:
  // Collective for Participants::processes, which join the process group at once.
  RankContext(const RunSettings& settings, Participants participants);
  ~RankContext();

  // As the process knows them: 0 of 1 where it was told to be alone.
  int rank() const { return settings_.alone ? 0 : settings_.rank; }
  int world_size() const { return settings_.alone ? 1 : settings_.world_size; }
  std::uint64_t seed() const { return settings_.seed; }
  bool full() const { return settings_.full; }
  bool share_gpu() const { return settings_.share_gpu; }
  const std::filesystem::path& folder() const { return settings_.folder; }
  // Of a job that may be started again: 0 for the first attempt; and a folder that all of them share.
  int attempt() const { return settings_.attempt.value_or(0); }
  const std::filesystem::path& job_folder() const { return settings_.job_folder; }

  // Collective: joins the process group, observed. `timeout` is of this and of every operation.
  void join(std::chrono::milliseconds timeout);
  // Collective, as lockstep's own, observed and recorded: a run that calls these lets go of its group
  // itself, and nobody waits for the others at its end. The options' timeout and method count.
  ProcessGroupPtr init_process_group(const InitOptions& options);
  void destroy_process_group(ProcessGroupPtr& group);
  // Collective over the group: lockstep::new_group, observed and recorded.
  ProcessGroupPtr new_group(const std::vector<int>& ranks, std::chrono::milliseconds timeout);
  const ProcessGroupPtr& group() const { return group_; }  // null before join()
  c10::Device device() const { return device_; }
  // A timeout for what is to hang soon: 2 s; over NCCL 20 s, since a GPU's context, its first kernels and NCCL's
  // connections take seconds. Less than what the supervisor waits.
  std::chrono::milliseconds patience() const;
  // Of a run that drives devices, which is what world_size() counts: GPUs with the backend nccl, which take turns under
  // --share-gpu where there are fewer; else the CPU, as often. Throws UnavailableError where GPUs are missing.
  std::vector<c10::Device> devices() const;

  Outcome& outcome() { return outcome_; }

  // What only the program knows, for the trace (record/recorder.h).
  void intent(const trace::Intent& intent);
  void metric(const std::string& name, const std::string& phase, double sum, double count);
  void decision(const std::string& name, std::int64_t value);
  void random_numbers(const std::vector<std::int64_t>& ids, const at::Tensor& numbers);
  void training_state(const std::string& moment, const ValueOf<at::Tensor>::Dict& parts);
  // For what is rarer: the probes that the library's own events go through. For a rank, not for a device.
  record::Probes& told() { return recorder_->probes(); }

  // Writes the outcome to folder()/rank_<r>.outcome.json. Called after an error too: what a rank saw
  // until then is what an oracle of a crash looks at.
  void write();
  // Collective where there is a group: waits until every rank has written, then leaves it. Not after
  // an error.
  void leave();

 private:
  InitOptions init_options(std::chrono::milliseconds timeout);

  RunSettings settings_;
  std::vector<std::shared_ptr<trace::Writer>> writers_;
  std::shared_ptr<record::Recorder> recorder_;               // of a rank
  std::shared_ptr<record::DeviceRecorder> device_recorder_;  // of a process that drives devices
  ProcessGroupPtr group_;
  c10::Device device_{c10::kCPU};
  Outcome outcome_;
};

}  // namespace lockstep
