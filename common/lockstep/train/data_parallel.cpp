#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <lockstep/base/error.h>
#include <lockstep/observe/observer.h>
#include <lockstep/train/data_parallel.h>

#include <algorithm>
#include <exception>
#include <string>
#include <thread>

namespace lockstep {
namespace {

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;
using Parameters = std::vector<std::vector<at::Tensor>>;

void tell_transfer(std::size_t from, std::size_t to, std::int64_t bytes, const char* what) {
  tell([&](Observer& to_whom) { to_whom.transfer(from, to, bytes, what); });
}

std::int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.numel() * tensor.element_size());
}

// Making a clone draws initial values that are thrown away; the program's random stream must not
// feel it.
class KeepGlobalGenerator {
 public:
  KeepGlobalGenerator() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeepGlobalGenerator() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeepGlobalGenerator(const KeepGlobalGenerator&) = delete;
  KeepGlobalGenerator& operator=(const KeepGlobalGenerator&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

std::shared_ptr<torch::nn::Module> copy_to(const torch::nn::Module& module, c10::Device device) {
  std::shared_ptr<torch::nn::Module> copy;
  try {
    copy = module.clone(device);
  } catch (const c10::Error& error) {
    throw UsageError("replicate: " + module.name() + " cannot be cloned (" +
                     error.what_without_backtrace() +
                     "). Derive it from torch::nn::Cloneable and make its layers in reset().");
  }
  // clone() copies values only; reset() made every parameter trainable.
  const auto from = module.parameters();
  auto to = copy->parameters();
  for (std::size_t i = 0; i < from.size(); ++i) to[i].set_requires_grad(from[i].requires_grad());
  return copy;
}

// The replicas' parameters, checked to correspond.
Parameters parameters_of(const Modules& replicas, const std::vector<double>& weights,
                         const char* function) {
  const std::string where = std::string(function) + ": ";
  if (replicas.empty()) throw UsageError(where + "expected a replica at least, found none.");
  if (replicas.size() != weights.size())
    throw UsageError(where + "expected a weight per replica (" + std::to_string(replicas.size()) +
                     "), found " + std::to_string(weights.size()) + ".");
  Parameters parameters;
  for (const auto& replica : replicas) parameters.push_back(replica->parameters());
  for (std::size_t r = 1; r < parameters.size(); ++r) {
    if (parameters[r].size() != parameters[0].size())
      throw UsageError(where + "replica 0 has " + std::to_string(parameters[0].size()) +
                       " parameters, replica " + std::to_string(r) + " " +
                       std::to_string(parameters[r].size()) + ".");
    for (std::size_t p = 0; p < parameters[0].size(); ++p)
      if (parameters[r][p].sizes() != parameters[0][p].sizes())
        throw UsageError(where + "parameter " + std::to_string(p) + " of replica " +
                         std::to_string(r) + " has another shape than replica 0's.");
  }
  return parameters;
}

// The parameters that some replica has a gradient of.
std::vector<std::size_t> with_gradient(const Parameters& parameters) {
  std::vector<std::size_t> result;
  for (std::size_t p = 0; p < parameters[0].size(); ++p)
    if (std::any_of(parameters.begin(), parameters.end(),
                    [p](const auto& replica) { return replica[p].grad().defined(); }))
      result.push_back(p);
  return result;
}

// A replica's weighted gradients in one vector.
at::Tensor flatten(const std::vector<at::Tensor>& parameters,
                   const std::vector<std::size_t>& chosen, double weight) {
  std::vector<at::Tensor> parts;
  for (const auto p : chosen) {
    const auto& grad = parameters[p].grad();
    if (parameters[p].scalar_type() != parameters[chosen[0]].scalar_type())
      throw UsageError("ring_all_reduce_gradients: expected gradients of one dtype, found " +
                       std::string(c10::toString(parameters[chosen[0]].scalar_type())) + " and " +
                       c10::toString(parameters[p].scalar_type()) + ".");
    parts.push_back((grad.defined() ? grad * weight : at::zeros_like(parameters[p])).reshape({-1}));
  }
  return at::cat(parts);
}

void unflatten(const at::Tensor& flat, std::vector<at::Tensor>& parameters,
               const std::vector<std::size_t>& chosen) {
  std::int64_t begin = 0;
  for (const auto p : chosen) {
    auto& parameter = parameters[p];
    const auto part = flat.slice(0, begin, begin + parameter.numel()).view(parameter.sizes());
    if (parameter.grad().defined())
      parameter.mutable_grad().copy_(part);
    else
      parameter.mutable_grad() = part.clone();
    begin += parameter.numel();
  }
}

// Chunk c of n of a device's vector; the chunks' sizes differ by at most one.
at::Tensor chunk_of(const at::Tensor& flat, std::size_t c, std::size_t n) {
  const auto cut = [&](std::size_t k) {
    return flat.numel() * static_cast<std::int64_t>(k) / static_cast<std::int64_t>(n);
  };
  return flat.slice(0, cut(c), cut(c + 1));
}

// After step s of the first round (reduce-scatter), device i + 1 holds the sum of s + 2 devices in
// the chunk it received; after n - 1 steps device i has the whole sum of chunk i + 1. The second
// round (all-gather) passes these on.
void ring_all_reduce(std::vector<at::Tensor>& flats) {
  const std::size_t n = flats.size();
  for (const bool reduce_scatter : {true, false})
    for (std::size_t step = 0; step + 1 < n; ++step)
      for (std::size_t from = 0; from < n; ++from) {
        const std::size_t to = (from + 1) % n;
        const std::size_t c = (from + n - step + (reduce_scatter ? 0 : 1)) % n;
        const auto sent = chunk_of(flats[from], c, n);
        auto target = chunk_of(flats[to], c, n);
        tell_transfer(from, to, bytes_of(sent), "gradients");
        if (reduce_scatter)
          target.add_(sent.to(target.device()));
        else
          target.copy_(sent);
      }
}

}  // namespace

std::vector<at::Tensor> scatter(const at::Tensor& batch, const std::vector<c10::Device>& devices) {
  if (devices.empty()) throw UsageError("scatter: expected a device at least, found none.");
  if (batch.dim() == 0)
    throw UsageError("scatter: expected a batch with a dimension to cut along, found a scalar.");
  const auto count = static_cast<std::int64_t>(devices.size());
  auto parts = at::chunk(batch, count);
  tell([&](Observer& to) {
    std::vector<std::int64_t> sizes;
    for (const auto& part : parts) sizes.push_back(part.size(0));
    to.split(count, sizes);
  });
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i == 0) {
      parts[i] = parts[i].to(devices[i]);
      continue;
    }
    // A copy even on one processor: a device's memory is its own.
    parts[i] = parts[i].to(devices[i], parts[i].scalar_type(), /*non_blocking=*/false,
                           /*copy=*/true);
    if (!batch.is_cpu()) tell_transfer(0, i, bytes_of(parts[i]), "input");
  }
  return parts;
}

Modules replicate(const std::shared_ptr<torch::nn::Module>& module,
                  const std::vector<c10::Device>& devices) {
  if (devices.empty()) throw UsageError("replicate: expected a device at least, found none.");
  const KeepGlobalGenerator keep;
  Modules replicas{module};
  std::int64_t bytes = 0;
  for (const auto& parameter : module->parameters()) bytes += bytes_of(parameter);
  for (const auto& buffer : module->buffers()) bytes += bytes_of(buffer);
  for (std::size_t i = 1; i < devices.size(); ++i) {
    replicas.push_back(copy_to(*module, devices[i]));
    tell_transfer(0, i, bytes, "parameters");
  }
  tell([&](Observer& to) { to.replicated(replicas); });
  return replicas;
}

void parallel_apply(std::size_t count, const std::function<void(std::size_t)>& work) {
  const at::ThreadLocalState here;
  std::vector<std::exception_ptr> failures(count);
  {
    std::vector<std::jthread> threads;
    threads.reserve(count);
    for (std::size_t i = 0; i < count; ++i)
      threads.emplace_back([&, i] {
        const at::ThreadLocalStateGuard guard(here);
        try {
          work(i);
        } catch (...) {
          failures[i] = std::current_exception();
        }
      });
  }  // joins
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
  tell([&](Observer& to) { to.applied(count); });
}

at::Tensor gather(const std::vector<at::Tensor>& outputs, c10::Device device) {
  if (outputs.empty()) throw UsageError("gather: expected an output at least, found none.");
  std::vector<at::Tensor> here;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    here.push_back(outputs[i].to(device));
    if (i > 0) tell_transfer(i, 0, bytes_of(outputs[i]), "output");
  }
  return at::cat(here);
}

void reduce_gradients(const Modules& replicas, const std::vector<double>& weights) {
  torch::NoGradGuard no_grad;
  auto parameters = parameters_of(replicas, weights, "reduce_gradients");
  for (const auto p : with_gradient(parameters)) {
    auto& target = parameters[0][p];
    if (target.grad().defined())
      target.mutable_grad().mul_(weights[0]);
    else
      target.mutable_grad() = at::zeros_like(target);
    for (std::size_t r = 1; r < replicas.size(); ++r) {
      const auto& grad = parameters[r][p].grad();
      if (!grad.defined()) continue;
      target.mutable_grad().add_(grad.to(target.device()), weights[r]);
      tell_transfer(r, 0, bytes_of(grad), "gradients");
    }
  }
}

void ring_all_reduce_gradients(const Modules& replicas, const std::vector<double>& weights) {
  torch::NoGradGuard no_grad;
  auto parameters = parameters_of(replicas, weights, "ring_all_reduce_gradients");
  const auto chosen = with_gradient(parameters);
  if (chosen.empty()) return;
  std::vector<at::Tensor> flats;
  for (std::size_t r = 0; r < replicas.size(); ++r)
    flats.push_back(flatten(parameters[r], chosen, weights[r]));
  ring_all_reduce(flats);
  for (std::size_t r = 0; r < replicas.size(); ++r) unflatten(flats[r], parameters[r], chosen);
}

}  // namespace lockstep
