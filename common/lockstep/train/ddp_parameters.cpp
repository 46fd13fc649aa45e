#include <lockstep/train/ddp_parameters.h>

#include <functional>
#include <unordered_set>

namespace lockstep::detail {
namespace {

using Visit = std::function<void(const std::string& prefix, const torch::nn::Module& module)>;
using SeenTensors = std::unordered_set<const c10::TensorImpl*>;

// Pre-order, each module once, however often it is registered: Python's named_modules(). LibTorch's
// own walk visits a shared module again.
void walk(const torch::nn::Module& module, const std::string& prefix,
          std::unordered_set<const torch::nn::Module*>& seen, const Visit& visit) {
  if (!seen.insert(&module).second) return;
  visit(prefix, module);
  for (const auto& child : module.named_children())
    if (child.value()) walk(*child.value(), prefix + child.key() + ".", seen, visit);
}

void walk(const torch::nn::Module& module, const Visit& visit) {
  std::unordered_set<const torch::nn::Module*> seen;
  walk(module, "", seen, visit);
}

bool gives_sparse_gradients(const torch::nn::Module& module) {
  if (const auto* embedding = module.as<torch::nn::Embedding>()) return embedding->options.sparse();
  if (const auto* bag = module.as<torch::nn::EmbeddingBag>()) return bag->options.sparse();
  return false;
}

std::vector<at::Tensor> all_of(
    const torch::nn::Module& module,
    c10::function_ref<std::vector<at::Tensor>(const torch::nn::Module&)> tensors_of) {
  std::vector<at::Tensor> result;
  SeenTensors seen;
  walk(module, [&](const std::string&, const torch::nn::Module& part) {
    for (const auto& tensor : tensors_of(part))
      if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second)
        result.push_back(tensor.detach());
  });
  return result;
}

}  // namespace

std::vector<at::Tensor> all_parameters(const torch::nn::Module& module) {
  return all_of(module, [](const auto& part) { return part.parameters(/*recurse=*/false); });
}

std::vector<at::Tensor> all_buffers(const torch::nn::Module& module) {
  return all_of(module, [](const auto& part) { return part.buffers(/*recurse=*/false); });
}

ReducedParameters reduced_parameters(const torch::nn::Module& module) {
  ReducedParameters result;
  SeenTensors seen;
  walk(module, [&](const std::string& prefix, const torch::nn::Module& part) {
    for (const auto& item : part.named_parameters(/*recurse=*/false)) {
      const auto& tensor = item.value();
      if (!tensor.defined() || !tensor.requires_grad()) continue;
      if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      result.names.push_back(prefix + item.key());
      result.tensors.push_back(tensor);
      result.sparse.push_back(gives_sparse_gradients(part));
    }
  });
  return result;
}

std::unordered_map<std::size_t, std::string> ReducedParameters::names_by_index() const {
  std::unordered_map<std::size_t, std::string> result;
  for (std::size_t index = 0; index < names.size(); ++index) result.emplace(index, names[index]);
  return result;
}

}  // namespace lockstep::detail
