#include <lockstep/base/error.h>
#include <lockstep/dist/collective_call.h>
#include <lockstep/observe/observer.h>
#include <lockstep/train/sync_batch_norm.h>
#include <lockstep/train/sync_batch_norm_ops.h>

#include <ostream>

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Every rank's part, without those that have no samples. Collective.
detail::RankStatistics gather(c10d::ProcessGroup& group, const at::Tensor& local) {
  const auto all = at::stack(all_gather(group, local));
  const auto channels = (local.size(0) - 1) / 2;
  const auto filled = all.index({all.select(1, 2 * channels) >= 1});
  return {filled.narrow(1, 0, channels).contiguous(),
          filled.narrow(1, channels, channels).contiguous(),
          filled.select(1, 2 * channels).contiguous()};
}

// Normalizes by statistics of all ranks. They depend on every rank's input, so the backward adds up
// two sums over the ranks.
class Normalize : public torch::autograd::Function<Normalize> {
 public:
  // Weight and bias as optionals: a Function takes no undefined tensors.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& mean,
                            const at::Tensor& invstd, const at::Tensor& counts, double eps,
                            const ProcessGroupPtr& group) {
    context->save_for_backward({input, weight.value_or(at::Tensor()), mean, invstd, counts});
    context->saved_data["group"] = c10::IValue::make_capsule(group);
    return detail::normalize(input, weight.value_or(at::Tensor()), bias.value_or(at::Tensor()),
                             {mean, invstd}, eps);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    // The engine leaves gradients switched on where create_graph was asked for.
    if (torch::GradMode::is_enabled())
      throw Error(
          "SyncBatchNorm: its backward communicates and cannot be differentiated; call backward or "
          "grad without create_graph");
    const auto saved = context->get_saved_variables();
    const auto &input = saved[0], &weight = saved[1], &counts = saved[4];
    const detail::GlobalStatistics statistics{saved[2], saved[3]};
    const auto group = c10::static_intrusive_pointer_cast<c10d::ProcessGroup>(
        context->saved_data["group"].toCapsule());

    variable_list result(8);
    auto sums = detail::gradient_sums(gradients[0], input, statistics);
    const auto channels = input.size(1);
    // Left local: whoever reduces the other parameters' gradients reduces these.
    if (weight.defined()) {
      result[1] = sums.narrow(0, channels, channels) * statistics.invstd;
      result[2] = sums.narrow(0, 0, channels).clone();
    }
    if (context->needs_input_grad(0)) {
      all_reduce(*group, sums);
      result[0] = detail::input_gradient(gradients[0], input, weight, statistics, sums, counts);
    }
    return result;
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& batch_norm_options,
                                     ProcessGroupPtr group)
    : options(batch_norm_options), group_(std::move(group)) {
  SyncBatchNormImpl::reset();
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& batch_norm_options,
                                     ProcessGroupPtr group, const BatchNormTensors& tensors)
    : options(batch_norm_options), group_(std::move(group)) {
  adopt(tensors);
}

void SyncBatchNormImpl::reset() {
  const auto channels = options.num_features();
  BatchNormTensors tensors;
  if (options.affine()) {
    tensors.weight = torch::ones(channels).requires_grad_();
    tensors.bias = torch::zeros(channels).requires_grad_();
  }
  if (options.track_running_stats()) {
    tensors.running_mean = at::zeros(channels);
    tensors.running_var = at::ones(channels);
    tensors.num_batches_tracked = at::zeros({}, at::kLong);
  }
  adopt(tensors);
}

void SyncBatchNormImpl::adopt(const BatchNormTensors& tensors) {
  // register_parameter sets requires_grad; a frozen parameter must stay frozen.
  const auto trained = [](const at::Tensor& parameter) {
    return parameter.defined() && parameter.requires_grad();
  };
  weight = register_parameter("weight", tensors.weight, trained(tensors.weight));
  bias = register_parameter("bias", tensors.bias, trained(tensors.bias));
  running_mean = register_buffer("running_mean", tensors.running_mean);
  running_var = register_buffer("running_var", tensors.running_var);
  num_batches_tracked = register_buffer("num_batches_tracked", tensors.num_batches_tracked);
}

// A rank that fails here fails before its collective; shapes that differ in C would hang the job.
void SyncBatchNormImpl::check(const at::Tensor& input) const {
  if (input.dim() < 2)
    throw UsageError("SyncBatchNorm: the input needs at least 2 dimensions, [N, C, ...]; it has " +
                     std::to_string(input.dim()));
  if (input.size(1) != options.num_features() || input.size(1) == 0)
    throw UsageError("SyncBatchNorm: the layer is made for " +
                     std::to_string(options.num_features()) + " channels; the input has " +
                     std::to_string(input.size(1)) + " in dimension 1 (and 0 are too few)");
}

// Counts this batch; the weight its statistics get in the running ones.
double SyncBatchNormImpl::count_batch() {
  if (!is_training() || !num_batches_tracked.defined()) return options.momentum().value_or(0.0);
  num_batches_tracked += 1;
  return options.momentum().value_or(1.0 / num_batches_tracked.item<double>());
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  check(input);
  const double momentum = count_batch();
  if (!is_training() || !group_ || group_->getSize() == 1)
    return torch::nn::functional::detail::batch_norm(
        input, running_mean, running_var, weight, bias,
        is_training() || !options.track_running_stats(), momentum, options.eps());

  detail::RankStatistics ranks;
  detail::GlobalStatistics global;
  {
    const torch::NoGradGuard no_grad;  // Normalize's backward knows what depends on what
    const auto local = detail::local_statistics(input, options.eps());
    ranks = gather(*group_, local);
    const double values = ranks.count.sum().item<double>();
    if (values == 1)
      throw UsageError(
          "SyncBatchNorm: expected more than 1 value per channel when training; all ranks together "
          "have 1");
    if (values == 0) return input.clone();  // as torch's: nothing to normalize or to learn from
    global = detail::merge_statistics(input, ranks, options.eps(),
                                      {running_mean, running_var, momentum});
    tell([&](Observer& to) {
      const auto channels = input.size(1);
      to.average("SyncBatchNorm", local.narrow(0, 0, channels), input.numel() / channels,
                 global.mean);
    });
  }
  return Normalize::apply(input, std::optional(weight), std::optional(bias), global.mean,
                          global.invstd, ranks.count, options.eps(), group_);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum())
    stream << *options.momentum();
  else
    stream << "None";
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats()
         << ", ranks=" << (group_ ? group_->getSize() : 1) << ")";
}

}  // namespace lockstep
