#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DefaultDtype.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <lockstep/observe/own_operations.h>
#include <lockstep/prove/operations.h>
#include <torch/library.h>

#include <array>
#include <functional>
#include <map>
#include <string_view>
#include <vector>

namespace lockstep::prove {
namespace {

using Stack = torch::jit::Stack;
using Arguments = std::vector<c10::Argument>;

Operations* known = nullptr;

bool is_narrow(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

bool is_type(const c10::Argument& argument) {
  auto type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::ScalarTypeType;
}

bool is_given(const c10::IValue& value, at::ScalarType wanted) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().scalar_type() == wanted;
}

// Types that are asked for; and tensors out of the program's own memory, where they meet others. What is written to
// stays.
void widen(const Arguments& arguments, c10::IValue* given) {
  bool has_wide = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    has_wide |= is_given(given[i], at::kDouble);
    if (given[i].isInt() && is_type(arguments[i]) &&
        is_narrow(static_cast<at::ScalarType>(given[i].toInt())))
      given[i] = static_cast<std::int64_t>(at::kDouble);
  }
  if (!has_wide) return;
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (given[i].isTensor() && given[i].toTensor().defined() &&
        is_narrow(given[i].toTensor().scalar_type()) && arguments[i].alias_info() == nullptr)
      given[i] = given[i].toTensor().to(at::kDouble);
}

// Null where the operation has no such argument.
c10::IValue* named(const char* name, const Arguments& arguments, c10::IValue* given) {
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == name) return given + i;
  return nullptr;
}

bool drops(std::string_view name) {
  return name.find("dropout") != name.npos;
}

void make_neutral(std::string_view name, const Arguments& arguments, c10::IValue* given,
                  std::set<std::string>& notes) {
  if (auto* chance = drops(name) ? named("p", arguments, given) : nullptr) {
    *chance = 0.0;
    notes.insert("dropout drops nothing");
  }
  if (name != "aten::batch_norm") return;
  const auto* statistics = named("running_mean", arguments, given);
  auto* training = named("training", arguments, given);
  if (!statistics->isTensor() || !statistics->toTensor().defined() || !training->toBool()) return;
  *training = false;
  notes.insert("BatchNorm goes by its running statistics");
}

// The place in the program's file that called torch, as OPERATION+OFFSET: the same in each run.
std::string site_of(const std::string& operation) {
  std::array<void*, 64> frames;
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  Dl_info own, frame;
  if (dladdr(reinterpret_cast<void*>(&site_of), &own) == 0) return operation;
  bool was_torch = false;
  for (int i = 0; i < count; ++i) {
    if (dladdr(frames[static_cast<std::size_t>(i)], &frame) == 0) continue;
    const bool is_own = frame.dli_fbase == own.dli_fbase;
    if (is_own && was_torch) {
      const auto offset = static_cast<char*>(frames[static_cast<std::size_t>(i)]) -
                          static_cast<char*>(frame.dli_fbase);
      return operation + "+" + std::to_string(offset);
    }
    was_torch = was_torch || !is_own;
  }
  return operation;
}

// By operation, what its draws can be in place of.
enum class Draw { chance, normal, uniform };
const std::map<std::string, Draw, std::less<>> kDraws{
    {"aten::bernoulli", Draw::chance},  {"aten::bernoulli_", Draw::chance},
    {"aten::normal_", Draw::normal},    {"aten::randn", Draw::normal},
    {"aten::randn_like", Draw::normal}, {"aten::rand", Draw::uniform},
    {"aten::rand_like", Draw::uniform}, {"aten::uniform_", Draw::uniform}};

// Random along its last dimension only: any other may be the samples'. A shorter row is the begin of a longer.
at::Tensor same_rows(Draw draw, const Arguments& arguments, c10::IValue* given,
                     const at::Tensor& like) {
  constexpr std::int64_t kRow = 4096;
  const auto number = [&](const char* name, double otherwise) {
    const auto* value = named(name, arguments, given);
    return value != nullptr && value->isDouble() ? value->toDouble() : otherwise;
  };
  const std::int64_t length = like.dim() > 1 ? like.size(-1) : 1;
  const auto dice = at::detail::createCPUGenerator(static_cast<std::uint64_t>(draw));
  const std::vector<std::int64_t> sizes{(length / kRow + 1) * kRow};
  const auto options = at::TensorOptions(at::kDouble);
  auto row =
      (draw == Draw::normal ? at::randn(sizes, dice, options) : at::rand(sizes, dice, options))
          .slice(0, 0, length)
          .to(like.device());
  if (draw == Draw::normal) row = number("mean", 0) + number("std", 1) * row;
  if (draw == Draw::uniform) row = number("from", 0) + (number("to", 1) - number("from", 0)) * row;
  if (draw == Draw::chance) {
    const auto* chance = named("p", arguments, given);
    if (chance == nullptr) chance = given;  // of the tensor that holds it
    row = row.expand_as(like) <
          (chance->isTensor() ? chance->toTensor() : at::full_like(like, chance->toDouble()));
  }
  return row.expand_as(like).to(like.scalar_type());
}

void draw(const c10::OperatorHandle& operation, const std::string& name, const Arguments& arguments,
          Stack* stack) {
  const auto site = site_of(name.substr(name.find("::") + 2));
  const auto can_be = kDraws.find(name);
  const bool is_known = can_be != kDraws.end();
  const bool is_neutral = is_known && known->still && known->still->contains(site);
  std::vector<c10::IValue> given;
  if (is_neutral)
    given.assign(stack->end() - static_cast<std::ptrdiff_t>(arguments.size()), stack->end());
  operation.callBoxed(stack);
  if (stack->empty() || !stack->back().isTensor() || !stack->back().toTensor().defined()) return;
  const auto result = stack->back().toTensor();
  if (is_neutral) result.data().copy_(same_rows(can_be->second, arguments, given.data(), result));
  known->drawn(site, is_known, result);
}

void pass(const c10::OperatorHandle& operation, Stack* stack) {
  const OwnOperations own;
  const auto& name = operation.schema().operator_name().name;
  const auto& arguments = operation.schema().arguments();
  auto* given = stack->data() + stack->size() - arguments.size();
  if (known->wide) widen(arguments, given);
  if (known->still) make_neutral(name, arguments, given, known->notes);
  known->before();
  const bool detaches =
      name == "aten::detach" && given[0].isTensor() && given[0].toTensor().requires_grad();
  if (operation.hasTag(at::Tag::nondeterministic_seeded) && !drops(name))
    return draw(operation, name, arguments, stack);
  operation.callBoxed(stack);
  if (detaches) stack->back() = known->detached(stack->back().toTensor());
}

}  // namespace

void intercept(Operations& operations) {
  known = &operations;
  if (operations.wide) c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  static torch::Library library(torch::Library::IMPL, "_",
                                c10::DispatchKey::TESTING_ONLY_GenericMode, __FILE__, __LINE__);
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&pass>());
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::TESTING_ONLY_GenericMode, true);
}

}  // namespace lockstep::prove
