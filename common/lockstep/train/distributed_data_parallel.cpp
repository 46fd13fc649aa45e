#include <lockstep/base/error.h>
#include <lockstep/dist/collective_call.h>
#include <lockstep/observe/observer.h>
#include <lockstep/train/agreement.h>
#include <lockstep/train/ddp_parameters.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/sync_batch_norm.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <limits>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace lockstep {
namespace {

constexpr std::size_t kBroadcastBucketBytes = 250 * 1024 * 1024;  // Python's broadcast_bucket_size

// Limits of the buckets before the first iteration. Where all parameters are used, one bucket holds
// all: their order of use is not known yet, and the rebuilt buckets follow it (Python's reasoning).
std::vector<std::size_t> first_bucket_limits(const DdpOptions& options, std::size_t cap) {
  if (options.static_graph || !options.find_unused_parameters)
    return {static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())};
  if (options.bucket_cap_mb < 0)
    return {static_cast<std::size_t>(c10d::kDefaultFirstBucketBytes), cap};
  return {cap};
}

std::size_t bucket_cap_bytes(const DdpOptions& options) {
  if (options.bucket_cap_mb < 0) return c10d::kDefaultBucketBytesCap;
  const auto bytes = static_cast<std::size_t>(options.bucket_cap_mb * 1024 * 1024);
  if (bytes == 0)
    throw UsageError("DistributedDataParallel: bucket_cap_mb " +
                     std::to_string(options.bucket_cap_mb) +
                     " is less than one byte; leave it negative for the default of 25 MiB");
  return bytes;
}

std::shared_ptr<c10d::Reducer> make_reducer(const detail::ReducedParameters& reduced,
                                            const ProcessGroupPtr& group,
                                            const DdpOptions& options) {
  const std::size_t cap = bucket_cap_bytes(options);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      reduced.tensors, first_bucket_limits(options, cap), reduced.sparse);
  // Gradients come in roughly the reverse order of use.
  std::reverse(buckets.begin(), buckets.end());
  const auto first_cap =
      options.bucket_cap_mb < 0 ? c10d::kDefaultFirstBucketBytes : static_cast<std::int64_t>(cap);
  return std::make_shared<c10d::Reducer>(
      reduced.tensors, std::move(buckets), group, reduced.sparse, static_cast<std::int64_t>(cap),
      options.find_unused_parameters, options.gradient_as_bucket_view, reduced.names_by_index(),
      first_cap,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
}

// What a forward's sink needs of its engine; outlives it where a graph does.
struct SinkState : torch::CustomClassHolder {
  std::shared_ptr<c10d::Reducer> reducer;
  bool static_graph = false;
  bool delayed_all_reduce_queued = false;
};

// Python's _DDPSink: an identity between the outputs and the loss, whose backward runs first of
// all. Outputs that the loss does not use get an undefined gradient, not zeros, so that the Reducer
// leaves alone what only they depend on; and the first iteration of a static graph queues its
// reduction for the end.
class Sink : public torch::autograd::Function<Sink> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const c10::intrusive_ptr<SinkState>& state,
                                                at::TensorList outputs) {
    context->set_materialize_grads(false);
    context->saved_data["state"] = c10::IValue::make_capsule(state);
    torch::autograd::variable_list copies;
    for (const auto& output : outputs) copies.push_back(output.clone());
    return copies;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto state =
        c10::static_intrusive_pointer_cast<SinkState>(context->saved_data["state"].toCapsule());
    if (state->static_graph && !state->delayed_all_reduce_queued) {
      torch::autograd::Engine::get_default_engine().queue_callback(
          [reducer = state->reducer] { reducer->delay_all_reduce(); });
      state->delayed_all_reduce_queued = true;
    }
    gradients.insert(gradients.begin(), at::Tensor());  // for `state`
    return gradients;
  }
};

// Tensors without a graph go around it, as in Python (pytorch/pytorch#60733).
std::vector<at::Tensor> through_sink(const c10::intrusive_ptr<SinkState>& state,
                                     std::vector<at::Tensor> outputs) {
  const auto has_graph = [](const at::Tensor& output) {
    return output.defined() && output.grad_fn();
  };
  std::vector<at::Tensor> inside;
  std::copy_if(outputs.begin(), outputs.end(), std::back_inserter(inside), has_graph);
  if (inside.empty()) return outputs;
  auto next = Sink::apply(state, at::TensorList(inside));
  auto passed = next.begin();
  for (auto& output : outputs)
    if (has_graph(output)) output = *passed++;
  return outputs;
}

}  // namespace

class DdpEngine::Impl {
 public:
  Impl(std::shared_ptr<torch::nn::Module> module, ProcessGroupPtr group, const DdpOptions& options);

  // `still_here`: the count of the ranks that are not done, inside join(); else null.
  void before_forward(c10::intrusive_ptr<c10d::Work> still_here,
                      const std::optional<JoinOptions>& join);
  std::vector<at::Tensor> after_forward(std::vector<at::Tensor> outputs);
  void shadow_iteration();
  void broadcast_state(int root);

  const std::shared_ptr<torch::nn::Module> module;
  const ProcessGroupPtr group;
  const DdpOptions options;
  std::shared_ptr<c10d::Reducer> reducer;
  bool require_sync = true;

 private:
  void check_module(const detail::ReducedParameters& reduced) const;
  void rebuild_buckets();
  // Where they are to be synced; find_root, which may be collective, is asked only then.
  void sync_buffers(const std::function<int()>& find_root);
  bool any_syncs(bool mine);
  void shadow_reduction();

  std::shared_ptr<c10d::Logger>
      logger_;  // the Reducer dereferences it, and keeps only a weak pointer
  c10::intrusive_ptr<SinkState> sink_ = c10::make_intrusive<SinkState>();
  bool sync_buffers_next_ = true;  // Python's require_forward_param_sync
};

DdpEngine::Impl::Impl(std::shared_ptr<torch::nn::Module> wrapped, ProcessGroupPtr process_group,
                      const DdpOptions& ddp_options)
    : module(std::move(wrapped)), group(std::move(process_group)), options(ddp_options) {
  tell([&](Observer& to) { to.wrapping(*module); });
  const auto reduced = detail::reduced_parameters(*module);
  check_module(reduced);
  if (options.init_sync) {
    detail::verify_same_parameters(group, reduced);
    broadcast_state(0);
  }
  reducer = make_reducer(reduced, group, options);
  // Python also calls set_construction_data_and_log, which only fills in logging data, and which
  // in 2.11 dereferences a null pointer where the process group is wrapped.
  logger_ = std::make_shared<c10d::Logger>(reducer);
  reducer->set_logger(logger_);
  sink_->reducer = reducer;
  sink_->static_graph = options.static_graph;
  if (options.static_graph) {
    reducer->set_static_graph();
    logger_->set_static_graph();
  }
  tell([&](Observer& to) { to.wrapped(*module, "distributed_data_parallel"); });
}

void DdpEngine::Impl::check_module(const detail::ReducedParameters& reduced) const {
  if (reduced.tensors.empty())
    throw UsageError("DistributedDataParallel: no parameter of the module requires a gradient");
  const auto device = device_of(*group).type();
  for (std::size_t index = 0; index < reduced.tensors.size(); ++index)
    if (device == c10::kCUDA && !reduced.tensors[index].is_cuda())
      throw UsageError(
          "DistributedDataParallel: " + reduced.names[index] + " is on " +
          reduced.tensors[index].device().str() +
          ", and the group's backend is nccl: move the module to device_of(group) first");
}

void DdpEngine::Impl::broadcast_state(int root) {
  auto state = detail::all_parameters(*module);
  if (options.broadcast_buffers)
    for (auto& buffer : detail::all_buffers(*module)) state.push_back(std::move(buffer));
  collective_call(*group, "DistributedDataParallel's broadcast of parameters",
                  [&] { c10d::broadcast_coalesced(group, state, kBroadcastBucketBytes, root); });
}

void DdpEngine::Impl::sync_buffers(const std::function<int()>& find_root) {
  if (!options.broadcast_buffers || !sync_buffers_next_) return;
  // Looked up anew each time: a module may replace its buffers.
  const auto buffers = detail::all_buffers(*module);
  if (buffers.empty()) return;
  const int root = find_root();
  const torch::NoGradGuard no_grad;
  collective_call(*group, "DistributedDataParallel's broadcast of buffers",
                  [&] { c10d::broadcast_coalesced(group, buffers, kBroadcastBucketBytes, root); });
}

void DdpEngine::Impl::before_forward(c10::intrusive_ptr<c10d::Work> still_here,
                                     const std::optional<JoinOptions>& join) {
  const bool grad = torch::GradMode::is_enabled();
  if (grad && require_sync) reducer->prepare_for_forward();
  if (still_here)
    reducer->set_forward_pass_work_handle(std::move(still_here),
                                          join->divide_by_initial_world_size);
  // A rank that has joined cannot know whether a gradient is wanted, so it rebuilds in any case.
  if (grad || join) rebuild_buckets();
  // Inside join() rank 0 may be done, and its buffers old.
  sync_buffers([&] { return join ? highest_rank_of(*group, true) : 0; });
  if (join) any_syncs(grad && require_sync);
}

void DdpEngine::Impl::rebuild_buckets() {
  // It also complains of a last backward that is not done: this rank's own fault, no collective's.
  std::exception_ptr own;
  collective_call(*group, "DistributedDataParallel's rebuilding of buckets", [&] {
    try {
      reducer->rebuild_buckets();
    } catch (const c10::DistError&) {
      throw;
    } catch (const c10::Error&) {
      own = std::current_exception();
    }
  });
  if (own) std::rethrow_exception(own);
}

std::vector<at::Tensor> DdpEngine::Impl::after_forward(std::vector<at::Tensor> outputs) {
  const bool finds_unused = options.find_unused_parameters && !options.static_graph;
  sync_buffers_next_ = torch::GradMode::is_enabled() && require_sync;
  if (sync_buffers_next_) {
    std::vector<at::Tensor> roots;
    if (finds_unused)
      std::copy_if(outputs.begin(), outputs.end(), std::back_inserter(roots),
                   [](const at::Tensor& output) { return output.defined(); });
    reducer->prepare_for_backward(roots);
  }
  const bool first_of_static = options.static_graph && !sink_->delayed_all_reduce_queued;
  return finds_unused || first_of_static ? through_sink(sink_, std::move(outputs)) : outputs;
}

// Whether any rank's backward will reduce. Those that are done ask; the others tell.
bool DdpEngine::Impl::any_syncs(bool mine) {
  return sum_over_ranks(*group, mine ? 1 : 0) != 0;
}

void DdpEngine::Impl::shadow_iteration() {
  rebuild_buckets();
  sync_buffers([&] { return highest_rank_of(*group, false); });
  sync_buffers_next_ = any_syncs(false);
  if (!sync_buffers_next_) return;
  shadow_reduction();
  tell([&](Observer& to) { to.update_shadowed(); });
}

// A backward's all-reduces in the Reducer's order, of zeros.
void DdpEngine::Impl::shadow_reduction() {
  collective_call(*group, "join's part in the other ranks' backward", [&] {
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> reductions;
    for (auto& bucket : reducer->get_grad_buckets(/*return_zero_tensors=*/true))
      reductions.push_back(reducer->run_comm_hook(bucket));
    for (const auto& reduction : reductions) reduction->waitAndThrow();
  });
  if (options.find_unused_parameters) {
    // Of zeros, too. Python sums what the last iteration left there, so a parameter that was once used gets a
    // gradient of zeros where nobody has used it, and momentum moves it.
    auto used = at::zeros_like(reducer->get_local_used_map_on_device());
    all_reduce(*group, used);
  }
  reducer->push_rebuilt_params_for_all_indices();
}

DdpEngine::DdpEngine(std::shared_ptr<torch::nn::Module> module, ProcessGroupPtr group,
                     const DdpOptions& options)
    : impl_(std::make_unique<Impl>(std::move(module), std::move(group), options)) {}

DdpEngine::~DdpEngine() = default;

void DdpEngine::before_forward() {
  impl_->before_forward(notify_join_context(), join_options());
}

std::vector<at::Tensor> DdpEngine::after_forward(std::vector<at::Tensor> outputs) {
  return impl_->after_forward(std::move(outputs));
}

void DdpEngine::set_require_sync(bool sync) {
  tell([&](Observer& to) { to.sync_gradients(sync); });
  impl_->require_sync = sync;
}

bool DdpEngine::require_sync() const {
  return impl_->require_sync;
}

void DdpEngine::register_builtin_comm_hook(c10d::BuiltinCommHookType hook) {
  impl_->reducer->register_builtin_comm_hook(hook);
}

void DdpEngine::register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook) {
  impl_->reducer->register_comm_hook(std::move(hook));
}

const std::shared_ptr<torch::nn::Module>& DdpEngine::module() const {
  return impl_->module;
}

const ProcessGroupPtr& DdpEngine::group() const {
  return impl_->group;
}

const ProcessGroupPtr& DdpEngine::join_process_group() const {
  return impl_->group;
}

void DdpEngine::main_hook() {
  impl_->shadow_iteration();
}

void DdpEngine::post_hook(bool is_last_joiner) {
  impl_->broadcast_state(highest_rank_of(*impl_->group, is_last_joiner));
}

void DdpEngine::check_join() const {
  if (impl_->options.static_graph)
    throw UsageError(
        "join: not with static_graph: a rank without a batch does not know the graph. Leave "
        "static_graph out, or agree on the number of batches");
  for (const auto& item : impl_->module->named_modules()) {
    const auto* layer = item.value()->as<SyncBatchNormImpl>();
    if (layer && layer->process_group() && layer->is_training())
      throw UsageError("join: " + item.key() +
                       " is a SyncBatchNorm, whose collectives inside forward no rank that is done "
                       "takes part in. Let such ranks train on empty batches, or agree on the "
                       "number of batches");
  }
}

void DdpEngine::leave_join() {
  impl_->reducer->set_forward_pass_work_handle({}, true);  // the last one's divisor
}

}  // namespace lockstep
