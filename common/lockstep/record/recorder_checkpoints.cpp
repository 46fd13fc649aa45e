// The recorder's part of checkpoints: their files, and the state that a rank saved and goes on with.
#include <lockstep/base/environment.h>
#include <lockstep/record/content.h>
#include <lockstep/record/recorder.h>

#include <algorithm>
#include <set>
#include <utility>

namespace lockstep::record {
namespace {

using Value = ValueOf<at::Tensor>;

// What optimizers hold, in a checkpoint; and the shapes of its other tensors.
struct Contained {
  std::vector<Value> optimizers;
  std::set<std::vector<std::int64_t>> shapes;
};

void look_into(const Value& value, int depth, Contained& found) {
  if (value.is_tensor()) found.shapes.insert(value.as_tensor().sizes().vec());
  if (!value.is_dict() || depth == 0) return;
  const auto& entries = value.as_dict();
  if (entries.contains("state") && entries.contains("param_groups")) {
    found.optimizers.push_back(entries.at("state"));
    return;
  }
  for (const auto& [key, item] : entries) look_into(item, depth - 1, found);
}

}  // namespace

void Recorder::checkpoint_file(const std::string& action, const std::filesystem::path& file,
                               c10::function_ref<void(trace::CheckpointFile&)> describe) {
  trace::CheckpointFile what;
  if (by_hand_ || !prepare([&] { what = checkpoint_file_of(action, file); })) return;
  hear([&] {
    what.local_rank = environment_int("LOCAL_RANK").value_or(writer_->participant().rank);
    const auto parameters = model_.parameters();
    what.device = parameters.empty() ? "cpu" : parameters.front().device().str();
    describe(what);
    probes_.checkpoint_file(what);
  });
}

void Recorder::saving(const std::filesystem::path& file) {
  checkpoint_file("save_begin", file, [&](trace::CheckpointFile&) { samples_.end_pass(); });
}

void Recorder::saved(const std::filesystem::path& file, const std::vector<std::string>& keys) {
  checkpoint_file("save_end", file, [&](trace::CheckpointFile& what) { what.keys = keys; });
}

void Recorder::loaded(const std::filesystem::path& file, const std::vector<std::string>& from,
                      const std::vector<std::string>& to, const std::vector<std::string>& keys) {
  checkpoint_file("load", file, [&](trace::CheckpointFile& what) {
    state_.tell();
    samples_.end_pass();
    probes_.flush();  // before the program changes the parameters
    state_.read();
    what.from = from;
    what.to = to;
    what.keys = keys;
  });
}

void Recorder::refused(const std::filesystem::path& file) {
  checkpoint_file("load", file, [](trace::CheckpointFile& what) { what.accepted = false; });
}

void Recorder::training_state(const std::string& moment, const ValueOf<at::Tensor>::Dict& parts) {
  trace::TrainingState state;
  if (!prepare([&] { state = training_state_of(moment, parts); })) return;
  told([&](Probes& probes) {
    state_.told_by_program();
    samples_.end_pass();
    probes.tell(state);
  });
}

void Recorder::state_saved(const Value& value) {
  Contained found;
  std::vector<std::uint64_t> moments;
  if (by_hand_ || !prepare([&] {
        look_into(value, 3, found);
        for (const auto& state : found.optimizers)
          if (const auto hash = moments_of(state)) moments.push_back(*hash);
      }))
    return;
  hear([&] {
    const auto parameters = model_.parameters();
    if (!std::all_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
          return found.shapes.count(parameter.sizes().vec()) > 0;
        }))
      return;
    state_.tell();
    samples_.end_pass();
    state_.keep("saved", moments.empty() ? std::nullopt : std::optional(std::move(moments)));
  });
}

void Recorder::optimizer_took(torch::optim::Optimizer& optimizer, const Value& state) {
  hear([&] { state_.optimizer_took(optimizer, state); });
}

}  // namespace lockstep::record
