#include <c10/util/Type.h>
#include <lockstep/record/configuration.h>

#include <optional>
#include <sstream>
#include <string>
#include <typeinfo>

namespace lockstep::record {
namespace {

void add(trace::Configuration& configuration, std::string key, std::string value) {
  configuration.keys.push_back(std::move(key));
  configuration.values.push_back(std::move(value));
}

template <class T>
std::string text_of(const T& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

std::optional<std::size_t> place_of(const at::Tensor& tensor,
                                    const std::vector<at::Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].is_same(tensor)) return i;
  return std::nullopt;
}

// Options write themselves into an archive; only an archive that was saved can be asked for its keys.
torch::serialize::InputArchive archive_of(const torch::optim::OptimizerOptions& options) {
  torch::serialize::OutputArchive written;
  options.serialize(written);
  std::stringstream bytes;
  written.save_to(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(bytes);
  return archive;
}

}  // namespace

trace::Configuration configuration_of(const torch::nn::Module& module) {
  trace::Configuration configuration{.of = "model", .keys = {}, .values = {}};
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    std::ostringstream text;
    item.value()->pretty_print(text);
    add(configuration, item.key(), text.str());
  }
  return configuration;
}

trace::Configuration modes_of(const torch::nn::Module& module) {
  trace::Configuration modes{.of = "statistics", .keys = {}, .values = {}};
  std::vector<at::Tensor> trained;
  for (const auto& parameter : module.parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  const auto buffers = module.buffers();
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    const auto own = item.value()->named_buffers(/*recurse=*/false);
    const auto weights = item.value()->named_parameters(/*recurse=*/false);
    if (!own.contains("running_mean") || !weights.contains("weight")) continue;
    const auto buffer = place_of(own["running_mean"], buffers);
    const auto parameter = place_of(weights["weight"], trained);
    if (!buffer || !parameter) continue;
    add(modes, "buffer " + std::to_string(*buffer) + ", parameter " + std::to_string(*parameter),
        item.value()->is_training() ? "train" : "eval");
  }
  return modes;
}

trace::Configuration configuration_of(const torch::optim::Optimizer& optimizer) {
  trace::Configuration configuration{.of = "optimizer", .keys = {}, .values = {}};
  add(configuration, "type", c10::demangle(typeid(optimizer).name()));
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    auto archive = archive_of(optimizer.param_groups()[i].options());
    for (const auto& key : archive.keys()) {
      c10::IValue value;
      if (key != "lr" && archive.try_read(key, value))
        add(configuration, "group " + std::to_string(i) + "." + key, text_of(value));
    }
  }
  return configuration;
}

}  // namespace lockstep::record
