#include <ATen/core/Reduction.h>
#include <lockstep/record/loss_graph.h>
#include <lockstep/record/readable.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <array>
#include <deque>
#include <exception>
#include <optional>
#include <sstream>
#include <utility>

namespace lockstep::record {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
namespace generated = torch::autograd::generated;

constexpr std::size_t kMostTerms = 16, kMostNodes = 64;

// Undefined where it is not readable, or unpacking would call hooks of the program's own.
at::Tensor tensor_in(const SavedVariable& saved) {
  auto tensor = saved.has_hooks() ? at::Tensor() : saved.unpack();
  return is_readable(tensor) ? tensor : at::Tensor();
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

// Calls `what` with the node as the one of these that it is; false where it is none.
template <class... Losses, class What>
bool as_one_of(const Node& node, What what) {
  const auto is = [&](const auto* loss) {
    if (loss != nullptr) what(*loss);
    return loss != nullptr;
  };
  return (is(dynamic_cast<const Losses*>(&node)) || ...);
}

// With one of torch's own losses.
template <class What>
bool as_loss(const Node& node, What what) {
  return as_one_of<generated::NllLossBackward0, generated::NllLoss2DBackward0,
                   generated::MseLossBackward0, generated::SmoothL1LossBackward0,
                   generated::HuberLossBackward0, generated::CtcLossBackward0,
                   generated::CtcLossBackward1, generated::BinaryCrossEntropyBackward0,
                   generated::BinaryCrossEntropyWithLogitsBackward0>(node, what);
}

// Of a loss that takes the mean itself: what it divides by.
std::optional<double> divisor_of_loss(const Node& node) {
  std::optional<double> divisor;
  as_loss(node, [&](const auto& loss) {
    if constexpr (requires { loss.reduction; }) {
      if (loss.reduction != at::Reduction::Mean) return;
      if constexpr (requires { loss.total_weight_; })
        divisor = number_in(loss.total_weight_);
      else
        divisor = numbers_in(loss.self_);
    }
  });
  return divisor;
}

// The first numbers.
std::string shown(const at::Tensor& tensor) {
  constexpr std::int64_t kMost = 16;
  const auto some =
      without_repeats(tensor.detach()).reshape(-1).slice(0, 0, kMost).to(at::kDouble).cpu();
  std::ostringstream text;
  for (std::int64_t i = 0; i < some.numel(); ++i)
    text << (i > 0 ? ", " : "") << some[i].item<double>();
  if (tensor.numel() > kMost) text << ", and " << tensor.numel() - kMost << " more";
  return text.str();
}

std::string shown(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// Of an operation that has rows and a weight, the place of the rows among its inputs.
std::optional<std::size_t> place_of_rows(const Node& node) {
  if (dynamic_cast<const generated::AddmmBackward0*>(&node) != nullptr) return 1;
  if (dynamic_cast<const generated::MmBackward0*>(&node) != nullptr) return 0;
  if (dynamic_cast<const generated::ConvolutionBackward0*>(&node) != nullptr) return 0;
  return std::nullopt;
}

// Of an operation that comes first, what it was given that has no gradient; undefined of others.
at::Tensor given_to(const Node& node) {
  if (const auto* looks_up = dynamic_cast<const generated::EmbeddingBackward0*>(&node))
    return tensor_in(looks_up->indices_);
  if (const auto* selects = dynamic_cast<const generated::IndexSelectBackward0*>(&node))
    return tensor_in(selects->index_);
  const auto rows = place_of_rows(node);
  if (!rows || input(node, *rows) != nullptr) return {};
  if (const auto* layer = dynamic_cast<const generated::AddmmBackward0*>(&node))
    return tensor_in(layer->mat1_);
  if (const auto* product = dynamic_cast<const generated::MmBackward0*>(&node))
    return tensor_in(product->self_);
  return tensor_in(dynamic_cast<const generated::ConvolutionBackward0&>(node).input_);
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
      if (++nodes_ > kMostNodes || found_.divisors.size() >= kMostTerms) {
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
      if (next == nullptr) {
        found_.divisors.push_back(divisor);
        look_below(node);
      }
      node = next;
    }
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

  LossGraph found() && { return too_many_ ? LossGraph{} : std::move(found_); }

 private:
  // From where a term ends down to a loss of torch's own, through masks and weights without a gradient.
  void look_below(const Node* node) {
    constexpr int kMost = 16;
    for (int i = 0; node != nullptr && i < kMost; ++i) {
      if (as_loss(*node, [&](const auto& loss) { look_at(loss); })) return;
      const Node* next = nullptr;
      for (std::size_t place = 0; place < node->num_outputs(); ++place)
        if (const Node* at = input(*node, place)) {
          if (next != nullptr) return;
          next = at;
        }
      node = next;
    }
  }

  template <class Loss>
  void look_at(const Loss& loss) {
    at::Tensor target;
    if constexpr (requires { loss.target_; })
      target = tensor_in(loss.target_);
    else
      target = tensor_in(loss.targets_);
    if (target.defined()) found_.targets.push_back(target);
    if constexpr (requires { loss.ignore_index; })
      add("ignore_index",
          shown(static_cast<double>(loss.ignore_index.guard_int(__FILE__, __LINE__))));
    if constexpr (requires { loss.blank; }) add("blank", shown(static_cast<double>(loss.blank)));
    if constexpr (requires { loss.beta; }) add("beta", shown(loss.beta));
    if constexpr (requires { loss.delta; }) add("delta", shown(loss.delta));
    if constexpr (requires { loss.weight_; })
      if (const auto weight = tensor_in(loss.weight_); weight.defined())
        add("weight", shown(weight));
    if constexpr (requires { loss.pos_weight_; })
      if (const auto weight = tensor_in(loss.pos_weight_); weight.defined())
        add("pos_weight", shown(weight));
  }

  void add(const std::string& name, std::string value) {
    found_.settings.emplace(name + " of term " + std::to_string(found_.divisors.size()),
                            std::move(value));
  }

  static bool is_sum_of_terms(const Node& node) {
    const auto* sum = dynamic_cast<const generated::AddBackward0*>(&node);
    const auto* difference = dynamic_cast<const generated::SubBackward0*>(&node);
    return (sum != nullptr && sum->alpha.equal(1)) ||
           (difference != nullptr && difference->alpha.equal(1));
  }

  LossGraph found_;
  std::size_t nodes_ = 0;
  bool too_many_ = false;
};

}  // namespace

LossGraph look_at_graph(const at::Tensor& loss) {
  if (!loss.grad_fn()) return {};
  try {
    Walk walk;
    walk.from(loss.grad_fn().get(), 1);
    return std::move(walk).found();
  } catch (const std::exception&) {  // it was freed, or changed in place
    return {};
  }
}

GraphEnds ends_of(const at::Tensor& loss, std::size_t most) {
  GraphEnds ends;
  if (!loss.grad_fn()) return ends;
  std::vector<std::pair<const Node*, at::Tensor>> leaves;
  std::unordered_set<const Node*> data;  // what rows lead to
  std::vector<const Node*> nodes = {loss.grad_fn().get()};
  std::unordered_set<const Node*> known(nodes.begin(), nodes.end());
  try {
    while (!nodes.empty() && known.size() < most) {
      const Node* node = nodes.back();
      nodes.pop_back();
      if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node))
        leaves.emplace_back(node, leaf->variable);
      if (auto given = given_to(*node); given.defined()) ends.inputs.push_back(std::move(given));
      if (const auto rows = place_of_rows(*node)) data.insert(input(*node, *rows));
      for (std::size_t place = 0; place < node->num_outputs(); ++place)
        if (const Node* next = input(*node, place); next != nullptr && known.insert(next).second)
          nodes.push_back(next);
    }
    for (const auto& [node, leaf] : leaves)
      if (data.count(node) == 0) ends.leaves.push_back(leaf);
    return ends;
  } catch (const std::exception&) {  // as above
    return {};
  }
}

Operations led_to(const at::Tensor& loss, const Operations& operations, std::size_t most) {
  Operations met;
  if (!loss.grad_fn()) return met;
  std::deque<const Node*> nodes = {loss.grad_fn().get()};
  std::unordered_set<const Node*> known(nodes.begin(), nodes.end());
  while (!nodes.empty() && known.size() < most) {
    const Node* node = nodes.front();
    nodes.pop_front();
    if (operations.contains(node)) met.insert(node);
    for (std::size_t place = 0; place < node->num_outputs(); ++place)
      if (const Node* next = input(*node, place); next != nullptr && known.insert(next).second)
        nodes.push_back(next);
  }
  return met;
}

WeakNode below_factors(const at::Tensor& loss) {
  auto node = loss.grad_fn();
  while (node) {
    const Node* next = nullptr;
    if (!Walk::factor_of(*node, next) && only_hands_on(node->name())) next = input(*node, 0);
    const auto& edges = node->next_edges();
    const auto below = std::ranges::find_if(
        edges, [&](const auto& edge) { return next != nullptr && edge.function.get() == next; });
    if (below == edges.end()) break;
    auto function = below->function;
    node = std::move(function);
  }
  return weak_node(node);
}

}  // namespace lockstep::record
