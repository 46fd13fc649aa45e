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

}  // namespace

std::vector<NamedTensor> all_parameters(const torch::nn::Module& module) {
  std::vector<NamedTensor> result;
  SeenTensors seen;
  walk(module, [&](const std::string& prefix, const torch::nn::Module& part) {
    for (const auto& item : part.named_parameters(/*recurse=*/false))
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
        result.push_back({prefix + item.key(), item.value()});
  });
  return result;
}

std::vector<NamedTensor> all_buffers(const torch::nn::Module& module) {
  std::vector<NamedTensor> result;
  SeenTensors seen;
  walk(module, [&](const std::string& prefix, const torch::nn::Module& part) {
    for (const auto& item : part.named_buffers(/*recurse=*/false))
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
        result.push_back({prefix + item.key(), item.value()});
  });
  return result;
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
