// The recorder's part of losses: their values, what their graphs tell, and updates that only the parameters tell of.
#include <lockstep/record/held_parameters.h>
#include <lockstep/record/loss_graph.h>
#include <lockstep/record/readable.h>
#include <lockstep/record/recorder.h>
#include <lockstep/record/settings.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <utility>

namespace lockstep::record {

void Recorder::loss(const at::Tensor& per_sample, const at::Tensor&, const at::Tensor&) {
  hear([&] {
    model_.begin();
    samples_.loss();
    losses_.push_back(per_sample.detach().reshape(-1));
  });
}

void Recorder::backward(const at::Tensor& root, bool whole) {
  hear([&] {
    state_.tell();
    look_for_update();
    model_.begin();
    note_parameters(root);
    probes_.backward();
    samples_.backward();
    const auto losses = std::exchange(losses_, {});
    if (root.numel() != 1 || !is_readable(root)) return;
    if (!losses.empty()) probes_.loss(root, losses.size() == 1 ? losses.front() : at::cat(losses));
    const bool looks = probes_.looks_at_values(), told = !losses.empty() && looks;
    cuts_.backward(root, probes_);
    if (looks) {
      if (whole) look_for_earlier(root);
      look_at_graph_of(root);
    }
    if (!told && (root.is_cpu() || looks) && root.is_floating_point())
      probes_.tell(trace::Backward{root.item<double>()});
  });
}

// ---- updates that nobody tells ----

void Recorder::note_parameters(const at::Tensor& root) {
  if (updates_are_told_ || model_.is_sharded()) return;
  if (writer_->step() < 0)
    writer_->set_step(0);  // of the first step, though the model is not known yet
  if (model_.is_known())
    unseen_updates_.note(model_.parameters(), false);
  else
    unseen_updates_.note(ends_of(root, kMostGraphNodes).leaves, true);
}

void Recorder::collective_begins(const trace::Collective& call, c10::ArrayRef<at::Tensor> tensors) {
  // An engine's, of gradients.
  if (torch::autograd::get_current_node()) return;
  // A program may reduce and update one parameter after another.
  hear([&] {
    cuts_.note(call, tensors);
    if (!updates_are_told_ && unseen_updates_.all_changed()) look_for_update();
    if (!is_updating_) probes_.collective_begins(call, tensors);
  });
}

void Recorder::look_for_update() {
  if (updates_are_told_ || model_.is_sharded()) return;
  const auto changed = unseen_updates_.changed();
  if (changed.empty()) return;
  unseen_updates_.forget();
  if (!model_.is_known()) {
    // What was given gradients and has not changed is no parameter, but an input of the program's.
    std::vector<at::Tensor> parameters;
    trace::Parameters before;
    for (const auto& each : changed) {
      parameters.push_back(each.parameter);
      before.values.push_back(each.before);
    }
    model_.begin_with(parameters, before);
  }
  state_.tell_resumed();
  samples_.draw_backed();
  probes_.updated_unseen();
  end_step();
}

// ---- the graph ----

void Recorder::look_at_graph_of(const at::Tensor& root) {
  auto graph = look_at_graph(root);
  if (!graph.divisors.empty()) probes_.tell(trace::LossDivisors{std::move(graph.divisors)});
  for (std::size_t i = 0; i < graph.targets.size(); ++i)
    probes_.tell(input_of(graph.targets[i], -1 - static_cast<std::int64_t>(i)));
  if (auto steady = steady_settings_.look(graph.settings); !steady.keys.empty())
    probes_.tell(steady);
  if (model_.is_sharded()) return;
  constexpr std::size_t kMostInputs = 8;
  auto ends = ends_of(root, kMostGraphNodes);
  if (!model_.is_wrapped() && !inputs_are_told_)
    for (std::size_t i = 0; i < std::min(ends.inputs.size(), kMostInputs); ++i)
      probes_.tell(input_of(ends.inputs[i], static_cast<std::int64_t>(i)));
  std::erase_if(ends.leaves, [&](const at::Tensor& leaf) { return model_.knows(leaf); });
  untrained_.look(writer_->step(), ends.leaves);
}

void Recorder::look_for_earlier(const at::Tensor& root) {
  constexpr std::size_t kMost = 64;
  std::erase_if(roots_, [](const auto& earlier) { return earlier.expired(); });
  Operations operations;
  for (const auto& earlier : roots_)
    if (const auto node = earlier.lock()) operations.insert(node.get());
  const auto met = operations.empty() ? operations : led_to(root, operations, kMostGraphNodes);
  const auto has_gradient = [](const at::Tensor& each) { return is_not_zero(each.grad()); };
  if (!met.empty() && std::ranges::any_of(model_.parameters(), has_gradient))
    probes_.tell(trace::LossAgain{static_cast<std::int64_t>(met.size())});
  if (root.grad_fn() && roots_.size() < kMost) roots_.push_back(below_factors(root));
}

void Recorder::tell_untrained() {
  const auto untrained = untrained_.unchanged(
      writer_->step(), [&](const at::Tensor& parameter) { return model_.knows(parameter); });
  if (!untrained.leaves.empty()) probes_.tell(untrained);
}

}  // namespace lockstep::record
