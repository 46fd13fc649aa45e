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

// In an order that does not hang on which optimizer was saved or loaded first.
Value::List in_order(std::vector<Value> states) {
  std::erase_if(states,
                [](const Value& state) { return !state.is_dict() || state.as_dict().empty(); });
  std::sort(states.begin(), states.end(), [](const Value& a, const Value& b) {
    return hash_value(a, nullptr) < hash_value(b, nullptr);
  });
  return {states.begin(), states.end()};
}

}  // namespace

void Recorder::checkpoint_file(const std::string& action, const std::filesystem::path& file,
                               c10::function_ref<void(trace::CheckpointFile&)> describe) {
  trace::CheckpointFile what;
  if (by_hand_ || !prepare([&] { what = checkpoint_file_of(action, file); })) return;
  hear([&] {
    what.local_rank = environment_int("LOCAL_RANK").value_or(writer_->participant().rank);
    const auto model = wrapped_.lock();
    const auto parameters = model ? model->parameters() : of_optimizers_;
    what.device = parameters.empty() ? "cpu" : parameters.front().device().str();
    describe(what);
    probes_.checkpoint_file(what);
  });
}

void Recorder::saving(const std::filesystem::path& file) {
  checkpoint_file("save_begin", file, [&](trace::CheckpointFile&) { end_pass(); });
}

void Recorder::saved(const std::filesystem::path& file) {
  checkpoint_file("save_end", file, [](trace::CheckpointFile&) {});
}

void Recorder::loaded(const std::filesystem::path& file, const std::vector<std::string>& from,
                      const std::vector<std::string>& to, const std::vector<std::string>& keys) {
  checkpoint_file("load", file, [&](trace::CheckpointFile& what) {
    end_pass();
    probes_.flush();  // before the program changes the parameters
    read_ = true;
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
    tells_state_ = true;
    end_pass();
    probes.tell(state);
  });
}

// ---- what a program that tells no state of its own saves and goes on with ----

std::vector<at::Tensor> Recorder::parameters_here() const {
  const auto model = wrapped_.lock();
  return model ? model->parameters() : of_optimizers_;
}

void Recorder::tell_state(const std::string& moment, std::optional<Value::List> optimizers) {
  const auto parameters = parameters_here();
  if (parameters.empty() || tells_state_ || sharded_) return;
  Value::Dict parts;
  parts["model"] = Value::List(parameters.begin(), parameters.end());
  const bool has_moments = optimizers && !optimizers->empty();
  if (optimizers) parts["optimizer"] = std::move(*optimizers);
  auto state = training_state_of(moment, parts);
  if (has_moments)
    state.devices.back() = state.devices.front();  // a load copies them to where the model is
  probes_.tell(state);
}

void Recorder::state_saved(const Value& value) {
  hear([&] {
    Contained found;
    look_into(value, 3, found);
    const auto parameters = parameters_here();
    if (!std::all_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
          return found.shapes.count(parameter.sizes().vec()) > 0;
        }))
      return;
    auto optimizers = in_order(std::move(found.optimizers));
    end_pass();
    tell_state("saved", optimizers.empty() ? std::nullopt : std::optional(std::move(optimizers)));
  });
}

void Recorder::optimizer_took(const Value& state) {
  hear([&] {
    if (!read_ || writer_->step() > 0) return;
    resumes_ = true;
    moments_.push_back(state);
  });
}

// Once; as soon as it is known which samples it goes on with.
void Recorder::tell_resumed() {
  if (!std::exchange(resumes_, false)) return;
  auto optimizers = in_order(std::exchange(moments_, {}));
  awaits_moments_ = optimizers.empty();
  tell_state("resumed", optimizers.empty() ? std::nullopt : std::optional(std::move(optimizers)));
}

}  // namespace lockstep::record
