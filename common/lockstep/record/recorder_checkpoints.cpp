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

bool holds_something(const Value& state) {
  return state.is_dict() && !state.as_dict().empty();
}

std::uint64_t hash_of(const Value& state) {
  std::set<std::string> devices;
  return hash_value(state, &devices);
}

}  // namespace

void Recorder::checkpoint_file(const std::string& action, const std::filesystem::path& file,
                               c10::function_ref<void(trace::CheckpointFile&)> describe) {
  trace::CheckpointFile what;
  if (by_hand_ || !prepare([&] { what = checkpoint_file_of(action, file); })) return;
  hear([&] {
    what.local_rank = environment_int("LOCAL_RANK").value_or(writer_->participant().rank);
    const auto parameters = parameters_here();
    what.device = parameters.empty() ? "cpu" : parameters.front().device().str();
    describe(what);
    probes_.checkpoint_file(what);
  });
}

void Recorder::saving(const std::filesystem::path& file) {
  checkpoint_file("save_begin", file, [&](trace::CheckpointFile&) { end_pass(); });
}

void Recorder::saved(const std::filesystem::path& file, const std::vector<std::string>& keys) {
  checkpoint_file("save_end", file, [&](trace::CheckpointFile& what) { what.keys = keys; });
}

void Recorder::loaded(const std::filesystem::path& file, const std::vector<std::string>& from,
                      const std::vector<std::string>& to, const std::vector<std::string>& keys) {
  checkpoint_file("load", file, [&](trace::CheckpointFile& what) {
    tell_kept_state();
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
  if (model) return model->parameters();
  return attached_.empty() ? alive(of_optimizers_) : attached_;
}

// `moments`: hashes of what optimizers hold, each; they go by their order, whichever was saved or loaded first.
void Recorder::keep_state(const std::string& moment,
                          std::optional<std::vector<std::uint64_t>> moments) {
  const auto parameters = parameters_here();
  if (parameters.empty() || tells_state_ || sharded_) return;
  Value::Dict parts;
  parts["model"] = Value::List(parameters.begin(), parameters.end());
  if (moments) {
    std::sort(moments->begin(), moments->end());
    Value::List hashes;
    for (const auto hash : *moments) hashes.push_back(static_cast<std::int64_t>(hash));
    parts["optimizer"] = std::move(hashes);
  }
  auto state = training_state_of(moment, parts);
  // A load copies them to where the model is.
  if (moments && !moments->empty()) state.devices.back() = state.devices.front();
  state_to_tell_ = std::move(state);
}

// Some calls later: until then the program may tell the same state itself, with parts that nobody else knows.
void Recorder::tell_kept_state() {
  if (auto state = std::exchange(state_to_tell_, std::nullopt); state && !tells_state_)
    probes_.tell(*state);
}

void Recorder::state_saved(const Value& value) {
  Contained found;
  std::vector<std::uint64_t> moments;
  if (by_hand_ || !prepare([&] {
        look_into(value, 3, found);
        for (const auto& state : found.optimizers)
          if (holds_something(state)) moments.push_back(hash_of(state));
      }))
    return;
  hear([&] {
    const auto parameters = parameters_here();
    if (!std::all_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
          return found.shapes.count(parameter.sizes().vec()) > 0;
        }))
      return;
    tell_kept_state();
    end_pass();
    keep_state("saved", moments.empty() ? std::nullopt : std::optional(std::move(moments)));
  });
}

void Recorder::optimizer_took(torch::optim::Optimizer& optimizer, const Value& state) {
  hear([&] {
    if (!read_ || writer_->step() > 0) return;
    resumes_ = true;
    if (holds_something(state)) moments_[&optimizer] = hash_of(state);
  });
}

// Once; as soon as it is known which samples it goes on with.
void Recorder::tell_resumed() {
  if (!std::exchange(resumes_, false)) return;
  std::vector<std::uint64_t> moments;
  for (const auto& [optimizer, hash] : std::exchange(moments_, {})) moments.push_back(hash);
  awaits_moments_ = moments.empty();
  keep_state("resumed", moments.empty() ? std::nullopt : std::optional(std::move(moments)));
  tell_kept_state();
}

}  // namespace lockstep::record
