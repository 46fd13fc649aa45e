#include <ATen/CPUGeneratorImpl.h>
#include <lockstep/checkpoint/optimizer_state.h>
#include <lockstep/observe/parameters_of.h>
#include <lockstep/prove/held.h>

#include <unordered_set>
#include <utility>

namespace lockstep::prove {
namespace {

constexpr std::size_t kMostInAGraph = 50'000;
constexpr std::int64_t kChunk = 4096;

// Of a random projection. The first ones are the same for each number, so zeros at the end do not count.
at::Tensor weights(std::int64_t number) {
  static auto all = at::empty({0}, at::kDouble);
  Tensors chunks{all};
  for (auto place = all.numel() / kChunk; place <= number / kChunk; ++place)
    chunks.push_back(at::randn({kChunk},
                               at::detail::createCPUGenerator(static_cast<std::uint64_t>(place)),
                               at::TensorOptions(at::kDouble)));
  if (chunks.size() > 1) all = at::cat(chunks);
  return all.slice(0, 0, number);
}

double projected(const at::Tensor& tensor) {
  const auto flat = tensor.data().to(at::kCPU, at::kDouble).reshape(-1);
  return flat.dot(weights(flat.numel())).item<double>();
}

// What of a state is a number, or may be made one.
Value::Dict digest(const Value& state) {
  Value::Dict found;
  for (const auto& [name, value] : state.as_dict())
    if (value.is_tensor())
      found[name] = projected(value.as_tensor());
    else if (value.is_int() || value.is_double())
      found[name] = value.as_double();
  return found;
}

std::string text_of(const Value& value) {
  if (!value.is_list() && !value.is_tuple())
    return value.is_double() || value.is_int() ? std::to_string(value.as_double()) : value.kind();
  std::string text;
  for (const auto& each : value.as_list()) text += text_of(each) + " ";
  return text;
}

}  // namespace

Value copied(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const auto own = tensor.data();
  return (own.is_sparse() ? own.to_dense() : own).to(at::kCPU).clone();
}

Value::List copied_all(const Tensors& tensors) {
  Value::List found;
  for (const auto& tensor : tensors) found.push_back(copied(tensor));
  return found;
}

at::Tensor rows_of(const Tensors& inputs) {
  at::Tensor found;
  std::int64_t place = 0;
  for (const auto& each : inputs) {
    if (!each.defined() || each.dim() == 0 || each.numel() == 0) continue;
    if (!found.defined()) found = at::zeros({each.size(0)}, at::kDouble);
    if (each.size(0) != found.size(0)) continue;
    const auto numbers = each.data().to(at::kCPU, at::kDouble).reshape({each.size(0), -1});
    found += static_cast<double>(++place) *
             numbers.nan_to_num(7.7, 8.8, -8.8).matmul(weights(numbers.size(1)));
  }
  return found;
}

Value::Dict state_of(torch::optim::Optimizer& optimizer) {
  const auto state = state_dict(optimizer);
  Value::List digests, options;
  const auto number = parameters_of(optimizer).size();
  for (std::size_t i = 0; i < number; ++i) {
    const auto* held = state.at("state").as_dict().find(Key(i));
    digests.emplace_back(held != nullptr ? digest(*held) : Value::Dict{});
  }
  for (const auto& group : state.at("param_groups").as_list()) {
    Value::Dict numbers;
    for (const auto& [name, value] : group.as_dict())
      if (name != Key("params"))
        numbers[name] =
            value.is_bool() || value.is_int() || value.is_double() ? value : Value(text_of(value));
    options.emplace_back(std::move(numbers));
  }
  return {{"digest", digests}, {"options", options}};
}

void add_own_functions(const at::Tensor& root, std::set<std::string>& names) {
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> left{root.grad_fn().get()};
  while (!left.empty() && seen.size() < kMostInAGraph) {
    auto* node = left.back();
    left.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    const auto name = node->name();
    const auto begins = name.find("CppNode<");
    if (begins != name.npos && name.find("lockstep::", begins) == name.npos)
      names.insert(name.substr(begins + 8, name.rfind('>') - begins - 8));
    for (const auto& edge : node->next_edges()) left.push_back(edge.function.get());
  }
}

}  // namespace lockstep::prove
