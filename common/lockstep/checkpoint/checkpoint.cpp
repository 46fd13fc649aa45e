#include <lockstep/archive/archive.h>
#include <lockstep/base/error.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/tensors.h>

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

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const Value& value,
                     const SaveOptions& options) {
  archive::NewFile file(path, {.sync = options.sync, .system = options.system});
  write(file, value, options.location);
  file.commit();
  archive::remove_leftovers(file.path().parent_path(),
                            options.system ? *options.system : archive::real_system());
}

std::filesystem::path save_checkpoint(CheckpointFolder& folder, std::int64_t number,
                                      const Value& value) {
  return folder.save(number, [&](archive::NewFile& file) { write(file, value, std::nullopt); });
}

Checkpoint load_checkpoint(const std::filesystem::path& path, const LoadOptions& options) {
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
    throw Error("cannot load " + path.string() + ": " + error.what());
  }
}

}  // namespace lockstep
