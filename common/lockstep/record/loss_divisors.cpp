#include <ATen/core/Reduction.h>
#include <lockstep/record/loss_divisors.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace lockstep::record {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
namespace generated = torch::autograd::generated;

constexpr std::size_t kMostTerms = 16, kMostNodes = 64;

// Undefined where unpacking would call hooks of the program's own.
at::Tensor tensor_in(const SavedVariable& saved) {
  return saved.has_hooks() ? at::Tensor() : saved.unpack();
}

// Nothing where it is not one number.
std::optional<double> number_in(const SavedVariable& saved) {
  const auto tensor = tensor_in(saved);
  if (!tensor.defined() || tensor.numel() != 1) return std::nullopt;
  return tensor.item<double>();
}

std::optional<double> numbers_in(const SavedVariable& saved) {
  const auto tensor = tensor_in(saved);
  if (!tensor.defined()) return std::nullopt;
  return static_cast<double>(tensor.numel());
}

const Node* input(const Node& node, std::size_t place) {
  return place < node.num_outputs() ? node.next_edge(place).function.get() : nullptr;
}

// A loss of torch's own that takes the mean itself: what it divides by.
template <class Loss>
std::optional<double> divisor_of(const Node& node) {
  const auto* loss = dynamic_cast<const Loss*>(&node);
  if (loss == nullptr || loss->reduction != at::Reduction::Mean) return std::nullopt;
  if constexpr (requires { loss->total_weight_; })
    return number_in(loss->total_weight_);
  else
    return numbers_in(loss->self_);
}

std::optional<double> divisor_of_loss(const Node& node) {
  for (const auto& divisor : {divisor_of<generated::NllLossBackward0>(node),
                              divisor_of<generated::NllLoss2DBackward0>(node),
                              divisor_of<generated::MseLossBackward0>(node),
                              divisor_of<generated::SmoothL1LossBackward0>(node),
                              divisor_of<generated::HuberLossBackward0>(node),
                              divisor_of<generated::BinaryCrossEntropyBackward0>(node),
                              divisor_of<generated::BinaryCrossEntropyWithLogitsBackward0>(node)})
    if (divisor) return divisor;
  return std::nullopt;
}

bool only_hands_on(const std::string& name) {
  static const std::array kNames = {"ViewBackward0",    "ReshapeAliasBackward0", "SqueezeBackward0",
                                    "SqueezeBackward1", "UnsqueezeBackward0",    "NegBackward0",
                                    "ToCopyBackward0",  "CloneBackward0",        "AliasBackward0",
                                    "AddBackward1",     "SubBackward1"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

class Walk {
 public:
  void from(const Node* node, double divisor) {
    while (node != nullptr) {
      if (++nodes_ > kMostNodes || terms_.size() >= kMostTerms) {
        too_many_ = true;
        return;
      }
      const Node* next = nullptr;
      if (const auto* mean = dynamic_cast<const generated::MeanBackward0*>(node)) {
        divisor *= static_cast<double>(mean->self_sym_numel.guard_int(__FILE__, __LINE__));
      } else if (const auto loss = divisor_of_loss(*node)) {
        divisor *= *loss;
      } else if (const auto factor = factor_of(*node, next)) {
        divisor /= *factor;
      } else if (only_hands_on(node->name())) {
        next = input(*node, 0);
      } else if (is_sum_of_terms(*node)) {
        from(input(*node, 0), divisor);
        next = input(*node, 1);
        if (next == nullptr) return;
      }
      if (next == nullptr) terms_.push_back(divisor);
      node = next;
    }
  }

  std::vector<double> terms() && {
    if (too_many_) terms_.clear();
    return std::move(terms_);
  }

 private:
  static bool is_sum_of_terms(const Node& node) {
    const auto* sum = dynamic_cast<const generated::AddBackward0*>(&node);
    const auto* difference = dynamic_cast<const generated::SubBackward0*>(&node);
    return (sum != nullptr && sum->alpha.equal(1)) ||
           (difference != nullptr && difference->alpha.equal(1));
  }

  // What a quotient or a product multiplies one of its inputs by, and that input. Nothing where both have a gradient.
  static std::optional<double> factor_of(const Node& node, const Node*& next) {
    const bool first = input(node, 0) != nullptr;
    if (first && input(node, 1) != nullptr) return std::nullopt;
    std::optional<double> by;
    bool divides = true;
    if (const auto* quotient = dynamic_cast<const generated::DivBackward0*>(&node)) {
      by = number_in(quotient->other_);
    } else if (const auto* divided = dynamic_cast<const generated::DivBackward1*>(&node)) {
      by = divided->other.toDouble();
    } else {
      divides = false;
      if (const auto* product = dynamic_cast<const generated::MulBackward0*>(&node))
        by = number_in(first ? product->other_ : product->self_);
      else if (const auto* scaled = dynamic_cast<const generated::MulBackward1*>(&node))
        by = scaled->other.toDouble();
    }
    if (!by || *by == 0) return std::nullopt;
    next = input(node, first ? 0 : 1);
    return divides ? 1 / *by : *by;
  }

  std::vector<double> terms_;
  std::size_t nodes_ = 0;
  bool too_many_ = false;
};

}  // namespace

std::vector<double> divisors_of(const at::Tensor& loss) {
  if (!loss.grad_fn()) return {};
  try {
    Walk walk;
    walk.from(loss.grad_fn().get(), 1);
    return std::move(walk).terms();
  } catch (const std::exception&) {  // it was freed, or changed in place
    return {};
  }
}

}  // namespace lockstep::record
