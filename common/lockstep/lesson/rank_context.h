// What a lesson's run is given: where it stands, what it may use, and where it writes what it saw.
#pragma once

#include <lockstep/dist/process_group.h>
#include <lockstep/record/probes.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {

// What one rank saw, for the oracles and the report. Plain numbers only.
struct Outcome {
  std::vector<double> losses;    // this rank's mean training loss, per epoch
  std::vector<double> accuracy;  // 0 to 1, as the program holds it, per epoch
  std::map<std::string, std::vector<double>> figures;
  std::map<std::string, std::vector<std::vector<std::int64_t>>>
      ids;  // per pass: the ids drawn, in order
};

struct RunSettings {
  std::string variant;
  int rank = 0;
  int world_size = 1;
  std::uint64_t seed = 0;
  bool full = false;  // the article's own size, not the quick one
  std::chrono::milliseconds operation_timeout{30'000};
  std::string backend = "gloo";
  std::filesystem::path folder;  // where this run's files go
};

class RankContext {
 public:
  // Collective when `with_group`: joins the process group, observed.
  RankContext(const RunSettings& settings, bool with_group);
  ~RankContext();

  int rank() const { return settings_.rank; }
  int world_size() const { return settings_.world_size; }
  std::uint64_t seed() const { return settings_.seed; }
  bool full() const { return settings_.full; }
  const std::filesystem::path& folder() const { return settings_.folder; }

  const ProcessGroupPtr& group() const { return group_; }
  c10::Device device() const { return device_; }

  // This rank's probes; for a lesson that drives several devices, those of one device.
  record::Probes& probes(int device = -1);
  Outcome& outcome() { return outcome_; }

  // Writes the outcome to folder()/rank_<r>.outcome.json. Called after an error too: what a rank saw
  // until then is what an oracle of a crash looks at.
  void write();
  // Collective: waits until every rank has written, then leaves the group. Not after an error.
  void leave();

 private:
  RunSettings settings_;
  std::vector<std::shared_ptr<trace::Writer>> writers_;
  std::vector<std::unique_ptr<record::Probes>> probes_;
  ProcessGroupPtr group_;
  c10::Device device_{c10::kCPU};
  Outcome outcome_;
};

}  // namespace lockstep
