#include <ATen/Context.h>
#include <c10/util/Type.h>
#include <lockstep/record/content.h>
#include <lockstep/record/held_parameters.h>
#include <lockstep/record/readable.h>
#include <lockstep/record/settings.h>

#include <array>
#include <charconv>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <typeinfo>

namespace lockstep::record {
namespace {

void add(trace::Settings& settings, std::string key, std::string value) {
  settings.keys.push_back(std::move(key));
  settings.values.push_back(std::move(value));
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

trace::Settings settings_of(const torch::nn::Module& module) {
  trace::Settings settings{.of = trace::SettingsOf::model, .keys = {}, .values = {}};
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    add(settings, item.key(), module_text(*item.value()));
  return settings;
}

trace::LayerModes modes_of(const torch::nn::Module& module) {
  trace::LayerModes modes;
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
    modes.layers.push_back({static_cast<std::int64_t>(*buffer),
                            static_cast<std::int64_t>(*parameter), item.value()->is_training()});
  }
  return modes;
}

trace::Settings settings_of(const torch::optim::Optimizer& optimizer,
                            const std::vector<at::Tensor>& parameters,
                            const std::vector<std::string>& names) {
  trace::Settings settings{.of = trace::SettingsOf::optimizer, .keys = {}, .values = {}};
  for (const auto& group : optimizer.param_groups()) {
    const auto place =
        group.params().empty() ? std::nullopt : place_of(group.params().front(), parameters);
    if (!place) continue;
    const auto of = names.at(*place) + ": ";
    if (const auto* named = dynamic_cast<const NamedOptions*>(&group.options())) {
      for (const auto& [key, value] : named->settings) add(settings, of + key, value);
      continue;
    }
    add(settings, of + "optimizer", c10::demangle(typeid(optimizer).name()));
    try {
      auto archive = archive_of(group.options());
      for (const auto& key : archive.keys()) {
        c10::IValue value;
        if (key != "lr" && archive.try_read(key, value)) add(settings, of + key, value_text(value));
      }
    } catch (const c10::Error&) {  // options of a program's own need not serialize
    }
  }
  return settings;
}

trace::RandomState random_state(const std::vector<at::Tensor>& parameters) {
  trace::RandomState state;
  const auto add_generator = [&](const at::Device& device) {
    auto generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    state.generators.push_back(device.str());
    state.hashes.push_back(hash_rows(generator.get_state().unsqueeze(0), 1).front());
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

trace::Settings SteadySettings::look(const std::map<std::string, std::string>& settings) {
  constexpr int kTimes = 3;
  trace::Settings steady{.of = trace::SettingsOf::loss, .keys = {}, .values = {}};
  for (const auto& [key, value] : settings) {
    auto& seen = seen_[key];
    if (seen.times == 0) seen.value = value;
    seen.varies = seen.varies || seen.value != value;
    if (++seen.times != kTimes || seen.varies) continue;
    steady.keys.push_back(key);
    steady.values.push_back(value);
  }
  return steady;
}

}  // namespace lockstep::record
