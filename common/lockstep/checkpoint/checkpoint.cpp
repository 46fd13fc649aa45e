#include <lockstep/archive/archive.h>
#include <lockstep/base/error.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/tensors.h>
#include <lockstep/observe/observer.h>
#include <torch/torch.h>

#include <mutex>
#include <set>

namespace lockstep {
namespace {

void write(archive::NewFile& file, const Value& value, const std::optional<std::string>& location) {
  checkpoint::Storages storages(location);
  archive::ArchiveWriter writer(file);
  try {
    writer.value(storages.describe(value));
  } catch (const Error& error) {
    throw Error("cannot save " + file.path().string() + ": " + error.what());
  }
  storages.for_each([&](const archive::Storage& storage, const at::Tensor& bytes) {
    const auto here = bytes.cpu();  // no copy on the CPU
    writer.storage(storage.key, {static_cast<const char*>(here.const_data_ptr()),
                                 static_cast<std::size_t>(storage.bytes)});
  });
  writer.finish();
}

void add_devices(const Value& value, std::set<std::string>& devices) {
  if (value.is_tensor()) devices.insert(value.as_tensor().device().str());
  if (value.is_list())
    for (const auto& item : value.as_list()) add_devices(item, devices);
  if (value.is_dict())
    for (const auto& [key, item] : value.as_dict()) add_devices(item, devices);
}

// Of the model's state: what stands under "model", else all of it.
std::vector<std::string> model_keys(const Value& value) {
  if (!value.is_dict()) return {};
  const auto* model = value.as_dict().find("model");
  if (model != nullptr && model->is_dict()) return model->as_dict().keys();
  std::vector<std::string> keys;
  for (const auto& [key, item] : value.as_dict())
    if (item.is_tensor()) keys.push_back(key.text());
  return keys;
}

void tell_loaded(const std::filesystem::path& path, const Checkpoint& checkpoint) {
  std::set<std::string> from, to;
  for (const auto& [tensor, location] : checkpoint.locations) from.insert(location);
  add_devices(checkpoint.value, to);
  const auto keys = model_keys(checkpoint.value);
  tell([&](Observer& listener) {
    listener.loaded(path, {from.begin(), from.end()}, {to.begin(), to.end()}, keys);
  });
}

void tell_saved(const std::filesystem::path& path, const Value& value) {
  const auto keys = value.is_dict() ? value.as_dict().keys() : std::vector<std::string>();
  tell([&](Observer& to) {
    to.saved(path, keys);
    to.state_saved(value);
  });
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const Value& value,
                     const SaveOptions& options, Place place) {
  tell_began("checkpoint", place);
  tell([&](Observer& to) { to.saving(path); });
  archive::NewFile file(path, {.sync = options.sync, .system = options.system});
  write(file, value, options.location);
  file.commit();
  tell_saved(path, value);
  archive::remove_leftovers(file.path().parent_path(),
                            options.system ? *options.system : archive::real_system());
}

std::filesystem::path save_checkpoint(CheckpointFolder& folder, std::int64_t number,
                                      const Value& value, Place place) {
  tell_began("checkpoint", place);
  const auto path = folder.save(number, [&](archive::NewFile& file) {
    tell([&](Observer& to) { to.saving(file.path()); });
    write(file, value, std::nullopt);
  });
  tell_saved(path, value);
  return path;
}

namespace {

Checkpoint read(const std::filesystem::path& path, const LoadOptions& options) {
  try {
    const archive::FileSource source(path);
    const archive::ArchiveReader reader(source);
    Checkpoint checkpoint;
    checkpoint.value = checkpoint::attach(
        reader.value(),
        [&](const archive::Storage& storage, void* to) { reader.read(storage, to); },
        options.map_location, &checkpoint.locations);
    return checkpoint;
  } catch (const Error& error) {
    tell([&](Observer& to) { to.refused(path); });
    throw Error("cannot load " + path.string() + ": " + error.what());
  }
}

}  // namespace

Checkpoint load_checkpoint(const std::filesystem::path& path, const LoadOptions& options,
                           Place place) {
  tell_began("checkpoint", place);
  auto checkpoint = read(path, options);
  if (anybody_observes.load(std::memory_order_relaxed)) tell_loaded(path, checkpoint);
  return checkpoint;
}

at::Tensor get_rng_state() {
  return get_rng_state(at::detail::getDefaultCPUGenerator());
}

at::Tensor get_rng_state(const at::Generator& generator) {
  auto own = generator;
  const std::lock_guard<std::mutex> lock(own.mutex());
  return own.get_state();
}

void set_rng_state(const at::Tensor& state) {
  set_rng_state(at::detail::getDefaultCPUGenerator(), state);
}

void set_rng_state(at::Generator generator, const at::Tensor& state) {
  if (!state.defined() || !state.device().is_cpu() || state.scalar_type() != at::kByte ||
      state.dim() != 1)
    throw Error("a random generator's state is a one-dimensional byte tensor on the CPU, found " +
                (state.defined() ? state.toString() + " of " + std::to_string(state.dim()) +
                                       " dimensions on " + state.device().str()
                                 : std::string("an undefined tensor")) +
                ". map_location moved it? Send it back with .cpu().");
  const std::lock_guard<std::mutex> lock(generator.mutex());
  // A file of a few bytes can describe a tensor of any size, and contiguous() would make it. Fewer bytes than
  // the generator's own are its matter: torch takes the shorter states of older versions.
  const auto most = generator.get_state().numel();
  if (state.numel() > most)
    throw Error("not a state of this random generator: it has " + std::to_string(state.numel()) +
                " bytes, the generator's own " + std::to_string(most));
  try {
    generator.set_state(state.contiguous());
  } catch (const c10::Error& error) {
    throw Error(std::string("not a state of this random generator: ") +
                error.what_without_backtrace());
  }
}

}  // namespace lockstep
