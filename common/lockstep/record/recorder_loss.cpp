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
namespace {

constexpr std::size_t kMostNodes = 1 << 14;  // of a graph

}  // namespace

void Recorder::loss(const at::Tensor& per_sample, const at::Tensor&, const at::Tensor&) {
  hear([&] {
    begin();
    if (!drawn_ && !undecided_ && backed_ == 0) draw_dealt(true);
    losses_.push_back(per_sample.detach().reshape(-1));
  });
}

void Recorder::backward(const at::Tensor& root) {
  hear([&] {
    tell_kept_state();
    look_for_update();
    begin();
    note_parameters(root);
    probes_.backward();
    if (std::exchange(undecided_, false)) ++backed_;
    awaits_backward_ = false;
    const auto losses = std::exchange(losses_, {});
    if (root.numel() != 1 || !is_readable(root)) return;
    if (!losses.empty()) probes_.loss(root, losses.size() == 1 ? losses.front() : at::cat(losses));
    const bool looks = probes_.looks_at_values(), told = !losses.empty() && looks;
    for (const auto& cut : std::exchange(cuts_, {}))
      if (const auto node = cut.node.lock();
          node && looks && node != root.grad_fn() && leads_to(root, node.get(), kMostNodes))
        probes_.tell(cut.what);
    if (looks) look_at_graph_of(root);
    if (!told && (root.is_cpu() || looks) && root.is_floating_point())
      probes_.tell(trace::Backward{root.item<double>()});
  });
}

// ---- updates that nobody tells ----

void Recorder::note_parameters(const at::Tensor& root) {
  if (updates_are_told_ || sharded_) return;
  if (writer_->step() < 0)
    writer_->set_step(0);  // of the first step, though the model is not known yet
  if (has_model_)
    unseen_updates_.note(parameters_here(), false);
  else
    unseen_updates_.note(ends_of(root, kMostNodes).leaves, true);
}

// What was given gradients and has not changed is no parameter, but an input of the program's.
void Recorder::begin_with(const std::vector<UnseenUpdates::Noted>& changed) {
  std::vector<at::Tensor> parameters;
  trace::Parameters before;
  for (const auto& each : changed) {
    parameters.push_back(each.parameter);
    before.values.push_back(each.before);
  }
  writer_->set_step(-1);
  attach(parameters);
  writer_->record(before);
  writer_->set_step(0);
  has_model_ = started_ = true;
}

// Of one number it may be a loss that is shown, and whose gradient does not go by its value.
void Recorder::note_cuts(const trace::Collective& call, c10::ArrayRef<at::Tensor> tensors) {
  constexpr std::size_t kMost = 64;
  if (!torch::GradMode::is_enabled() || call.op.find("allreduce") == std::string::npos) return;
  for (const auto& tensor : tensors)
    if (cuts_.size() < kMost && tensor.defined() && tensor.numel() > 1 && tensor.grad_fn())
      cuts_.push_back({{call.op, tensor.numel()}, tensor.grad_fn()});
}

void Recorder::collective_begins(const trace::Collective& call, c10::ArrayRef<at::Tensor> tensors) {
  // An engine's, of gradients.
  if (torch::autograd::get_current_node()) return;
  // A program may reduce and update one parameter after another.
  hear([&] {
    note_cuts(call, tensors);
    if (!updates_are_told_ && unseen_updates_.all_changed()) look_for_update();
    probes_.collective_begins(call, tensors);
  });
}

void Recorder::look_for_update() {
  if (updates_are_told_ || sharded_) return;
  const auto changed = unseen_updates_.changed();
  if (changed.empty()) return;
  unseen_updates_.forget();
  if (!has_model_) begin_with(changed);
  tell_resumed();
  draw_backed();
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
  if (sharded_) return;
  constexpr std::size_t kMostInputs = 8;
  auto ends = ends_of(root, kMostNodes);
  if (parameters_.empty() && !inputs_are_told_)
    for (std::size_t i = 0; i < std::min(ends.inputs.size(), kMostInputs); ++i)
      probes_.tell(input_of(ends.inputs[i], static_cast<std::int64_t>(i)));
  std::erase_if(ends.leaves, [&](const at::Tensor& leaf) { return is_known(leaf); });
  untrained_.look(writer_->step(), ends.leaves);
}

bool Recorder::is_known(const at::Tensor& parameter) const {
  return is_of_model(parameter) || is_attached(parameter) ||
         held_by_optimizers_.count(parameter.unsafeGetTensorImpl()) > 0;
}

void Recorder::tell_untrained() {
  const auto untrained = untrained_.unchanged(
      writer_->step(), [&](const at::Tensor& parameter) { return is_known(parameter); });
  if (!untrained.leaves.empty()) probes_.tell(untrained);
}

}  // namespace lockstep::record
