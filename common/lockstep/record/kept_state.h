// What a program that tells no state of its own saves, and goes on with.
#pragma once

#include <lockstep/record/probes.h>
#include <lockstep/record/recorded_model.h>
#include <lockstep/trace/event.h>
#include <lockstep/trace/writer.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::record {

// Parameters, and what optimizers hold beside them.
class KeptState {
 public:
  KeptState(const trace::Writer& writer, Probes& probes, const RecordedModel& model)
      : writer_(writer), probes_(probes), model_(model) {}

  // The program tells its state itself, with parts that nobody else knows.
  void told_by_program() { is_told_ = true; }
  void read() { read_ = true; }  // a checkpoint
  void model_took_state() { resumes_ = resumes_ || (read_ && writer_.step() <= 0); }
  void optimizer_took(const torch::optim::Optimizer& optimizer, const ValueOf<at::Tensor>& state);
  // `moments`: hashes of what optimizers hold, each; they go by their order, whichever was saved or loaded first.
  void keep(const std::string& moment, std::optional<std::vector<std::uint64_t>> moments);
  // Some calls after keep(): until then the program may tell the same state itself.
  void tell();
  // Once; as soon as it is known which samples it goes on with.
  void tell_resumed();
  void update_begins(const torch::optim::Optimizer& optimizer);

 private:
  const trace::Writer& writer_;
  Probes& probes_;
  const RecordedModel& model_;
  std::optional<trace::TrainingState> to_tell_;
  bool is_told_ = false;         // by the program itself
  bool read_ = false;            // a checkpoint
  bool resumes_ = false;         // from it, and has not told
  bool awaits_moments_ = false;  // it told, and no optimizer had taken a state
  std::map<const torch::optim::Optimizer*, std::uint64_t> moments_;  // that optimizers took
};

// The hash of what an optimizer holds; none where it holds nothing.
std::optional<std::uint64_t> moments_of(const ValueOf<at::Tensor>& state);

}  // namespace lockstep::record
