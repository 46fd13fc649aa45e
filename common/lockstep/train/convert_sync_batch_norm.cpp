// Finding the BatchNorm layers of a module tree, and making them synchronise.
#include <lockstep/base/error.h>
#include <lockstep/train/sync_batch_norm.h>

#include <set>
#include <sstream>
#include <typeinfo>

namespace lockstep {
namespace {

using torch::nn::Module;
using torch::nn::SequentialImpl;

// A plain BatchNorm that can be replaced: the Sequential, and the layer's name in it.
struct Replacement {
  SequentialImpl* parent = nullptr;
  std::string key;
  std::shared_ptr<SyncBatchNormImpl> layer;
};

template <class BatchNorm>
std::shared_ptr<SyncBatchNormImpl> replacement_of(const Module& module,
                                                  const ProcessGroupPtr& group) {
  if (typeid(module) != typeid(BatchNorm)) return nullptr;  // a derived class does more than this
  const auto& plain = dynamic_cast<const BatchNorm&>(module);
  const auto layer = std::make_shared<SyncBatchNormImpl>(
      plain.options, group,
      BatchNormTensors{plain.weight, plain.bias, plain.running_mean, plain.running_var,
                       plain.num_batches_tracked});
  layer->train(plain.is_training());
  return layer;
}

// Null for what is no torch::nn::BatchNorm.
std::shared_ptr<SyncBatchNormImpl> any_replacement_of(const Module& module,
                                                      const ProcessGroupPtr& group) {
  if (auto layer = replacement_of<torch::nn::BatchNorm1dImpl>(module, group)) return layer;
  if (auto layer = replacement_of<torch::nn::BatchNorm2dImpl>(module, group)) return layer;
  return replacement_of<torch::nn::BatchNorm3dImpl>(module, group);
}

bool derives_from_batch_norm(const Module& module) {
  return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module) != nullptr;
}

// What is to be done, found before anything is changed.
class Conversion {
 public:
  Conversion(Module& root, const ProcessGroupPtr& group) : group_(group) {
    if (auto* ours = dynamic_cast<SyncBatchNormImpl*>(&root))
      switch_on(*ours, "");
    else if (derives_from_batch_norm(root))
      refuse("the module itself", root, "it has no place to be replaced in");
    visit(root, "");
  }

  void run() {
    if (!refused_.empty())
      throw UsageError("convert_sync_batchnorm cannot convert" + refused_ +
                       "\nNothing was changed. Declare these layers as "
                       "lockstep::SyncBatchNorm(options, nullptr), "
                       "which a conversion switches on in place.");
    for (auto* layer : switched_on_) layer->synchronize(group_);
    for (const auto& replacement : replaced_) replace(replacement);
  }

  std::vector<std::string> names;  // of what is converted; "" is the module itself

 private:
  void visit(Module& parent, const std::string& prefix) {
    if (!seen_.insert(&parent).second) return;  // registered twice
    for (const auto& child : parent.named_children()) {
      const auto name = prefix + child.key();
      auto& module = *child.value();
      if (auto* ours = dynamic_cast<SyncBatchNormImpl*>(&module)) {
        switch_on(*ours, name);
      } else if (derives_from_batch_norm(module)) {
        plan(parent, child.key(), name, child.value());
      } else {
        visit(module, name + ".");
      }
    }
  }

  void switch_on(SyncBatchNormImpl& layer, const std::string& name) {
    switched_on_.push_back(&layer);
    names.push_back(name);
  }

  void plan(Module& parent, const std::string& key, const std::string& name,
            const std::shared_ptr<Module>& module) {
    // The Sequential's list of children, its list of layers, and the copy that visit() looks at.
    constexpr long kHolders = 3;
    auto* sequential = dynamic_cast<SequentialImpl*>(&parent);
    auto layer = any_replacement_of(*module, group_);
    if (!layer)
      return refuse(name, *module, "its class is derived from torch's, and would be lost");
    if (!sequential)
      return refuse(name, *module,
                    "its class calls it through a member, which would go on calling this layer");
    if (module.use_count() > kHolders)
      return refuse(name, *module,
                    "somebody outside its Sequential holds it too, and would go on calling it");
    replaced_.push_back({sequential, key, std::move(layer)});
    names.push_back(name);
  }

  void refuse(const std::string& name, const Module& module, const std::string& reason) {
    std::ostringstream text;
    text << "\n  " << name << " (";
    module.pretty_print(text);
    text << "): " << reason << ".";
    refused_ += text.str();
  }

  static void replace(const Replacement& replacement) {
    auto& parent = *replacement.parent;
    const auto old = parent.named_children()[replacement.key];
    // A Sequential runs its list of layers, and is saved, moved and listed by its children.
    for (auto& layer : parent)
      if (layer.ptr() == old) layer = torch::nn::AnyModule(replacement.layer);
    parent.replace_module(replacement.key, replacement.layer);
  }

  ProcessGroupPtr group_;
  std::set<const Module*> seen_;
  std::vector<SyncBatchNormImpl*> switched_on_;
  std::vector<Replacement> replaced_;
  std::string refused_;
};

}  // namespace

std::vector<std::string> convert_sync_batchnorm(Module& module, const ProcessGroupPtr& group) {
  if (!group)
    throw UsageError("convert_sync_batchnorm: there is no process group to synchronise over");
  Conversion conversion(module, group);
  conversion.run();
  return conversion.names;
}

}  // namespace lockstep
