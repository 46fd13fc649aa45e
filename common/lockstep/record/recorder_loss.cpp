// The recorder's part of losses: their values, and what their graphs tell.
#include <lockstep/record/configuration.h>
#include <lockstep/record/loss_graph.h>
#include <lockstep/record/recorder.h>

#include <algorithm>
#include <utility>

namespace lockstep::record {

void Recorder::loss(const at::Tensor& per_sample, const at::Tensor&, const at::Tensor&) {
  hear([&] {
    begin();
    if (!drawn_ && !undecided_ && backed_ == 0) draw_dealt(true);
    losses_.push_back(per_sample.detach().reshape(-1));
  });
}

void Recorder::backward(const at::Tensor& root) {
  hear([&] {
    begin();
    if (std::exchange(undecided_, false)) ++backed_;
    awaits_backward_ = false;
    const auto losses = std::exchange(losses_, {});
    if (root.numel() != 1) return;
    if (!losses.empty()) probes_.loss(root, losses.size() == 1 ? losses.front() : at::cat(losses));
    const bool looks = probes_.looks_at_values(), told = !losses.empty() && looks;
    if (looks) look_at_graph_of(root);
    const bool readable = root.is_cpu() || (looks && !root.is_meta());
    if (!told && readable && root.is_floating_point())
      probes_.tell(trace::Backward{root.item<double>()});
  });
}

void Recorder::look_at_graph_of(const at::Tensor& root) {
  auto graph = look_at_graph(root);
  if (!graph.divisors.empty()) probes_.tell(trace::LossDivisors{std::move(graph.divisors)});
  for (std::size_t i = 0; i < graph.targets.size(); ++i)
    probes_.tell(input_of(graph.targets[i], -1 - static_cast<std::int64_t>(i)));
  if (auto steady = steady_settings_.look(graph.settings); !steady.keys.empty())
    probes_.tell(steady);
  if (sharded_) return;
  constexpr std::size_t kMostNodes = 1 << 14, kMostInputs = 8;
  auto ends = ends_of(root, kMostNodes);
  if (parameters_.empty())  // no engine tells what its forward is given
    for (std::size_t i = 0; i < std::min(ends.inputs.size(), kMostInputs); ++i)
      probes_.tell(input_of(ends.inputs[i], static_cast<std::int64_t>(i)));
  std::erase_if(ends.leaves, [&](const at::Tensor& leaf) { return is_known(leaf); });
  untrained_.look(writer_->step(), ends.leaves);
}

bool Recorder::is_known(const at::Tensor& parameter) const {
  const auto is_it = [&](const at::Tensor& other) { return other.is_same(parameter); };
  return is_of_model(parameter) || is_attached(parameter) ||
         std::any_of(of_optimizers_.begin(), of_optimizers_.end(), is_it);
}

void Recorder::tell_untrained() {
  const auto untrained =
      untrained_.unchanged([&](const at::Tensor& parameter) { return is_known(parameter); });
  if (!untrained.keys.empty()) probes_.tell(untrained);
}

}  // namespace lockstep::record
