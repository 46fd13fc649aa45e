#include <ATen/Context.h>
#include <c10/util/Type.h>
#include <lockstep/base/hash.h>
#include <lockstep/record/configuration.h>
#include <lockstep/record/content.h>
#include <lockstep/record/held_parameters.h>
#include <lockstep/record/readable.h>

#include <array>
#include <charconv>
#include <mutex>
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

// 0.1, not IValue's 0.10000000000000001.
std::string value_text(const c10::IValue& value) {
  std::ostringstream text;
  if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements())
      text << (text.str().empty() ? "(" : ", ") << value_text(element);
    text << ")";
  } else if (value.isDouble()) {
    std::array<char, 32> digits{};
    text << std::string(digits.data(),
                        std::to_chars(digits.begin(), digits.end(), value.toDouble()).ptr);
  } else {
    text << value;
  }
  return text.str();
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

// A program's own module may print what is different on every rank.
std::string module_text(const torch::nn::Module& module) {
  const auto type = c10::demangle(typeid(module).name());
  if (!type.starts_with("torch::nn::") && !type.starts_with("lockstep::")) return type;
  std::ostringstream text;
  module.pretty_print(text);
  return text.str();
}

}  // namespace

trace::Configuration configuration_of(const torch::nn::Module& module) {
  trace::Configuration configuration{.of = "model", .keys = {}, .values = {}};
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    add(configuration, item.key(), module_text(*item.value()));
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

trace::Configuration configuration_of(const torch::optim::Optimizer& optimizer,
                                      const std::vector<at::Tensor>& parameters,
                                      const std::vector<std::string>& names) {
  trace::Configuration configuration{.of = "optimizer", .keys = {}, .values = {}};
  for (const auto& group : optimizer.param_groups()) {
    const auto place =
        group.params().empty() ? std::nullopt : place_of(group.params().front(), parameters);
    if (!place) continue;
    const auto of = names.at(*place) + ": ";
    add(configuration, of + "optimizer", c10::demangle(typeid(optimizer).name()));
    try {
      auto archive = archive_of(group.options());
      for (const auto& key : archive.keys()) {
        c10::IValue value;
        if (key != "lr" && archive.try_read(key, value))
          add(configuration, of + key, value_text(value));
      }
    } catch (const c10::Error&) {  // options of a program's own need not serialize
    }
  }
  return configuration;
}

trace::Configuration random_state(const std::vector<at::Tensor>& parameters) {
  trace::Configuration state{.of = "randomness", .keys = {}, .values = {}};
  const auto add_generator = [&](const at::Device& device) {
    auto generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    add(state, device.str(), hexadecimal(hash_rows(generator.get_state().unsqueeze(0), 1).front()));
  };
  add_generator(at::kCPU);
  if (!parameters.empty() && parameters.front().is_cuda())
    add_generator(parameters.front().device());
  return state;
}

trace::Input input_of(const at::Tensor& tensor, std::int64_t index) {
  constexpr std::int64_t kMost = 1 << 20;  // numbers that are looked at
  const at::NoGradGuard no_grad;
  trace::Input what{.index = index,
                    .shape = tensor.sizes().vec(),
                    .dtype = std::string(c10::getDtypeNames(tensor.scalar_type()).first)};
  if (!is_readable(tensor) || tensor.numel() == 0 || tensor.is_complex() || tensor.is_quantized() ||
      tensor.layout() != at::kStrided)
    return what;
  const auto all = without_repeats(tensor.detach()).reshape(-1);
  const auto numbers =
      all.slice(0, 0, all.size(0), (all.size(0) + kMost - 1) / kMost).to(at::kDouble);
  const auto [least, greatest] = numbers.aminmax();
  const auto found =
      at::stack({numbers.mean(), numbers.std(/*unbiased=*/false), least, greatest}).cpu();
  what.mean = found[0].item<double>();
  what.deviation = found[1].item<double>();
  what.least = found[2].item<double>();
  what.greatest = found[3].item<double>();
  return what;
}

}  // namespace lockstep::record
