#include <lockstep/record/content.h>
#include <lockstep/record/kept_state.h>

#include <algorithm>
#include <set>
#include <utility>

namespace lockstep::record {

std::optional<std::uint64_t> moments_of(const ValueOf<at::Tensor>& state) {
  if (!state.is_dict() || state.as_dict().empty()) return std::nullopt;
  std::set<std::string> devices;
  return hash_value(state, &devices);
}

void KeptState::optimizer_took(const torch::optim::Optimizer& optimizer,
                               const ValueOf<at::Tensor>& state) {
  if (!read_ || writer_.step() > 0) return;
  resumes_ = true;
  if (const auto hash = moments_of(state)) moments_[&optimizer] = *hash;
}

void KeptState::keep(const std::string& moment, std::optional<std::vector<std::uint64_t>> moments) {
  using Value = ValueOf<at::Tensor>;
  const auto parameters = model_.parameters();
  if (parameters.empty() || is_told_ || model_.is_sharded()) return;
  Value::Dict parts;
  parts["model"] = Value::List(parameters.begin(), parameters.end());
  if (moments) {
    std::ranges::sort(*moments);
    Value::List hashes;
    for (const auto hash : *moments) hashes.push_back(static_cast<std::int64_t>(hash));
    parts["optimizer"] = std::move(hashes);
  }
  auto state = training_state_of(moment, parts);
  // A load copies them to where the model is.
  if (moments && !moments->empty()) state.devices.back() = state.devices.front();
  to_tell_ = std::move(state);
}

void KeptState::tell() {
  if (auto state = std::exchange(to_tell_, std::nullopt); state && !is_told_) probes_.tell(*state);
}

void KeptState::tell_resumed() {
  if (!std::exchange(resumes_, false)) return;
  std::vector<std::uint64_t> moments;
  for (const auto& [optimizer, hash] : std::exchange(moments_, {})) moments.push_back(hash);
  awaits_moments_ = moments.empty();
  keep("resumed", moments.empty() ? std::nullopt : std::optional(std::move(moments)));
  tell();
}

void KeptState::update_begins(const torch::optim::Optimizer& optimizer) {
  tell_resumed();
  if (!std::exchange(awaits_moments_, false) || !optimizer.state().empty()) return;
  keep("resumed", std::vector<std::uint64_t>{});
  tell();
}

}  // namespace lockstep::record
