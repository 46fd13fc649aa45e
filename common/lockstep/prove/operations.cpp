#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DefaultDtype.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <lockstep/observe/own_operations.h>
#include <lockstep/prove/operations.h>
#include <torch/library.h>

#include <array>
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

bool drops(std::string_view name) {
  return name.find("dropout") != name.npos;
}

void make_neutral(std::string_view name, const Arguments& arguments, c10::IValue* given,
                  std::set<std::string>& notes) {
  const bool is_dropout = drops(name), normalizes = name == "aten::batch_norm";
  for (std::size_t i = 0; i < arguments.size() && (is_dropout || normalizes); ++i) {
    if (is_dropout && arguments[i].name() == "p") {
      given[i] = 0.0;
      notes.insert("dropout drops nothing");
    }
    const auto statistics = arguments[i].name() == "running_mean" ? given[i] : c10::IValue();
    if (normalizes && statistics.isTensor() && statistics.toTensor().defined())
      for (std::size_t k = 0; k < arguments.size(); ++k)
        if (arguments[k].name() == "training" && given[k].toBool()) {
          given[k] = false;
          notes.insert("BatchNorm goes by its running statistics");
        }
  }
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

double given_as(const char* name, const Arguments& arguments, const c10::IValue* given,
                double otherwise) {
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == name && given[i].isDouble()) return given[i].toDouble();
  return otherwise;
}

// Random along its last dimension only: any other may be the samples'. A shorter row is the begin of a longer. Undefined
// for an operation that is not known.
at::Tensor same_rows(const std::string& name, const Arguments& arguments, const c10::IValue* given,
                     const at::Tensor& like) {
  constexpr std::int64_t kRow = 4096;
  const bool is_normal = name.find("normal") != name.npos || name.find("randn") != name.npos;
  const bool is_chance = name.find("bernoulli") != name.npos;
  if (!is_normal && !is_chance && name != "aten::rand" && name != "aten::rand_like" &&
      name != "aten::uniform_")
    return {};
  if (name == "aten::normal") return {};
  const std::int64_t length = like.dim() > 1 ? like.size(-1) : 1;
  const auto dice = at::detail::createCPUGenerator(name.size());
  const auto options = at::TensorOptions(at::kDouble);
  const std::vector<std::int64_t> sizes{(length / kRow + 1) * kRow};
  auto row = (is_normal ? at::randn(sizes, dice, options) : at::rand(sizes, dice, options))
                 .slice(0, 0, length);
  if (is_normal) {
    row = given_as("mean", arguments, given, 0) + given_as("std", arguments, given, 1) * row;
  } else if (is_chance) {
    const auto chance = given_as("p", arguments, given, -1);
    row = row.expand_as(like) < (chance < 0 ? given[0].toTensor() : at::full_like(like, chance));
  } else {
    const auto from = given_as("from", arguments, given, 0);
    row = from + (given_as("to", arguments, given, 1) - from) * row;
  }
  return row.expand_as(like).to(like.scalar_type());
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
  const bool draws = operation.hasTag(at::Tag::nondeterministic_seeded) && !drops(name);
  const std::vector<c10::IValue> before =
      draws ? std::vector(given, given + arguments.size()) : std::vector<c10::IValue>();
  operation.callBoxed(stack);
  if (stack->empty() || !stack->back().isTensor() || !stack->back().toTensor().defined()) return;
  auto& result = stack->back();
  if (detaches) result = known->detached(result.toTensor());
  if (!draws) return;
  const auto site = site_of(name.substr(name.find("::") + 2));
  const auto rows = same_rows(name, arguments, before.data(), result.toTensor());
  if (rows.defined() && known->same_rows.contains(site)) result.toTensor().data().copy_(rows);
  known->drawn(site, rows.defined(), result.toTensor());
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
