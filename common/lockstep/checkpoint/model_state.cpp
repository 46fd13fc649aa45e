#include <lockstep/base/error.h>
#include <lockstep/checkpoint/model_state.h>
#include <lockstep/observe/observer.h>
#include <torch/torch.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace lockstep {
namespace {

constexpr const char* kWrapper =
    "module.";  // what Python's DistributedDataParallel puts before names

using Named = std::vector<std::pair<std::string, at::Tensor>>;

void collect(const torch::nn::Module& module, const std::string& prefix, Named& into) {
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    into.emplace_back(prefix + item.key(), item.value());
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    if (item.value().defined()) into.emplace_back(prefix + item.key(), item.value());
  for (const auto& item : module.named_children())
    collect(*item.value(), prefix + item.key() + ".", into);
}

Named tensors_of(const torch::nn::Module& model) {
  Named tensors;
  collect(model, "", tensors);
  return tensors;
}

std::string shape(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

std::string listed(const std::string& title, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  std::string text = "\n  " + title + ":";
  for (const auto& name : names) text += "\n    " + name;
  return text;
}

// The commonest cause has a telling look.
std::string hint(const IncompatibleKeys& keys) {
  const auto wrapped = [](const std::vector<std::string>& names) {
    return !names.empty() && std::all_of(names.begin(), names.end(), [](const std::string& name) {
      return name.starts_with(kWrapper);
    });
  };
  if (wrapped(keys.unexpected))
    return "\n  The saved names begin with \"module.\": they are those of a "
           "DistributedDataParallel "
           "wrapper. Save the module inside it.";
  if (wrapped(keys.missing))
    return "\n  The model's names begin with \"module.\": load into the module inside the wrapper.";
  return "";
}

std::string describe(const IncompatibleKeys& keys) {
  return "the state_dict does not fit the model." + listed("missing in it", keys.missing) +
         listed("not in the model", keys.unexpected) + listed("of another shape", keys.mismatched) +
         hint(keys);
}

}  // namespace

Value state_dict(const torch::nn::Module& model) {
  Value::Dict state;
  for (const auto& [name, tensor] : tensors_of(model)) state[name] = tensor.detach();
  return state;
}

IncompatibleKeys load_state_dict(torch::nn::Module& model, const Value& state,
                                 const LoadStateOptions& options) {
  const auto& saved = state.as_dict();
  const auto tensors = tensors_of(model);
  IncompatibleKeys keys;
  Value::Dict known;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from
  for (const auto& [name, tensor] : tensors) {
    known[name] = {};
    const auto* found = saved.find(name);
    if (found == nullptr) {
      keys.missing.push_back(name);
    } else if (!found->is_tensor()) {
      throw Error("\"" + name + "\" of the state_dict is of kind " + found->kind() +
                  ", not a tensor");
    } else if (found->as_tensor().sizes() != tensor.sizes()) {
      keys.mismatched.push_back(name + ": " + shape(found->as_tensor()) + " saved, " +
                                shape(tensor) + " in the model");
    } else {
      copies.emplace_back(tensor, found->as_tensor());
    }
  }
  for (const auto& [key, value] : saved)
    if (!known.contains(key)) keys.unexpected.push_back(key.text());
  if (options.strict && !keys.empty()) throw Error(describe(keys));
  const torch::NoGradGuard no_grad;
  for (auto& [to, from] : copies) to.copy_(from);
  const bool own =
      !copies.empty() && std::all_of(copies.begin(), copies.end(), [](const auto& copy) {
        return copy.first.is_alias_of(copy.second);
      });
  tell([&](Observer& to) { to.state_taken(model, own); });
  return keys;
}

}  // namespace lockstep
