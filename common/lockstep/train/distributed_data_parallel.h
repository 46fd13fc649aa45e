// DistributedDataParallel for C++: Python's own engine (c10d::Reducer), driven in Python's order,
// so that losses and parameters equal Python's DDP bit for bit on the same inputs.
//
//   auto model = DistributedDataParallel(Mlp(784, 256, 10), group);
//   auto loss = cross_entropy(model(inputs), targets);
//   loss.backward();            // all-reduces the gradients while it runs
//   optimizer.step();           // over model.parameters(); each rank updates its own copy
#pragma once

#include <lockstep/dist/process_group.h>
#include <lockstep/observe/observer.h>
#include <lockstep/train/join.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/default_comm_hooks.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

// Python's arguments, Python's defaults.
struct DdpOptions {
  bool broadcast_buffers = true;
  bool init_sync = true;      // broadcast rank 0's parameters and buffers at construction
  double bucket_cap_mb = -1;  // < 0: Python's default (25 MiB, first bucket 1 MiB)
  bool find_unused_parameters = false;
  // Gradients are views into the buckets, without a copy. optimizer.zero_grad() then throws "Can't
  // detach views in-place", with set_to_none or without (LibTorch detaches in place first); the
  // module's zero_grad(), which sets to none, works, and so does grad.zero_() on each gradient.
  bool gradient_as_bucket_view = false;
  bool static_graph = false;
};

// The part that is no template. Collective: construction (all ranks, with equal parameters), each
// forward with broadcast_buffers (but not the one after a forward without gradients or under NoSync,
// as in Python) or on the second iteration (buckets are rebuilt), each backward.
class DdpEngine : public Joinable {
 public:
  // Throws CollectiveError or Error: when ranks' parameters differ in number or shape (the message
  // names the first difference), or no parameter requires grad.
  DdpEngine(std::shared_ptr<torch::nn::Module> module, ProcessGroupPtr group,
            const DdpOptions& options);
  ~DdpEngine() override;

  void before_forward();
  // What forward returned, flattened; gives back the tensors to hand to the user (through Python's
  // sink where unused parameters or a static graph need it).
  std::vector<at::Tensor> after_forward(std::vector<at::Tensor> outputs);

  void set_require_sync(bool sync);
  bool require_sync() const;
  // fp16 or allreduce, built in; or your own, or one of comm_hooks.h. Once, before the first backward.
  void register_builtin_comm_hook(c10d::BuiltinCommHookType hook);
  void register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook);

  const std::shared_ptr<torch::nn::Module>& module() const;
  const ProcessGroupPtr& group() const;

  // For join(). Collective: what the other ranks' iteration asks for; and, at the end, the parameters and
  // buffers of one of the last ranks, to all.
  const ProcessGroupPtr& join_process_group() const override;
  void main_hook() override;
  void post_hook(bool is_last_joiner) override;
  void check_join() const override;

 private:
  void leave_join() override;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Tensors inside what a forward returns: a tensor, a vector of tensors, or a tuple of tensors.
namespace ddp_outputs {
inline std::vector<at::Tensor> flatten(const at::Tensor& output) {
  return {output};
}
inline std::vector<at::Tensor> flatten(const std::vector<at::Tensor>& outputs) {
  return outputs;
}
template <class... T>
std::vector<at::Tensor> flatten(const std::tuple<T...>& outputs) {
  return std::apply([](const auto&... output) { return std::vector<at::Tensor>{output...}; },
                    outputs);
}
inline void restore(at::Tensor& output, std::vector<at::Tensor> tensors) {
  output = tensors.at(0);
}
inline void restore(std::vector<at::Tensor>& outputs, std::vector<at::Tensor> tensors) {
  outputs = std::move(tensors);
}
template <class... T>
void restore(std::tuple<T...>& outputs, std::vector<at::Tensor> tensors) {
  std::size_t next = 0;
  std::apply([&](auto&... output) { ((output = tensors.at(next++)), ...); }, outputs);
}
}  // namespace ddp_outputs

// The tensors among what a forward is given.
namespace ddp_inputs {
template <class Input>
void add(std::vector<at::Tensor>& tensors, const Input& input) {
  if constexpr (std::is_convertible_v<const Input&, at::Tensor>)
    tensors.push_back(input);
  else if constexpr (std::is_convertible_v<const Input&, std::vector<at::Tensor>>)
    tensors.insert(tensors.end(), input.begin(), input.end());
}
template <class... Inputs>
std::vector<at::Tensor> tensors_in(const Inputs&... inputs) {
  std::vector<at::Tensor> tensors;
  (add(tensors, inputs), ...);
  return tensors;
}
}  // namespace ddp_inputs

// Wraps a module holder (what TORCH_MODULE makes). Copies share the engine.
template <class Holder>
class DistributedDataParallel {
 public:
  DistributedDataParallel(Holder module, ProcessGroupPtr group, const DdpOptions& options = {},
                          Place place = Place::here())
      : module_(std::move(module)) {
    tell_began("wrapping", place);
    engine_ = std::make_shared<DdpEngine>(module_.ptr(), std::move(group), options);
  }

  // Forward with synchronisation. module()->forward() bypasses it.
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) {
    tell([&](Observer& to) { to.forward_begins(*module_, ddp_inputs::tensors_in(inputs...)); });
    engine_->before_forward();
    auto outputs = module_->forward(std::forward<Inputs>(inputs)...);
    tell([&](Observer& to) { to.forward_ended(*module_); });
    ddp_outputs::restore(outputs, engine_->after_forward(ddp_outputs::flatten(outputs)));
    return outputs;
  }

  Holder& module() { return module_; }
  // The wrapped module's, without the "module." prefix that Python's wrapper adds.
  std::vector<at::Tensor> parameters() const { return module_->parameters(); }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }
  DdpEngine& engine() { return *engine_; }

 private:
  Holder module_;
  std::shared_ptr<DdpEngine> engine_;
};

// While it lives, backward does not synchronise: for gradient accumulation. The forward must be
// inside too, as in Python.
class NoSync {
 public:
  explicit NoSync(DdpEngine& engine) : engine_(engine), before_(engine.require_sync()) {
    engine_.set_require_sync(false);
  }
  ~NoSync() { engine_.set_require_sync(before_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  DdpEngine& engine_;
  bool before_;
};

}  // namespace lockstep
