// Between torch's tensors and a file's descriptions of them.
#pragma once

#include <lockstep/archive/archive.h>
#include <lockstep/checkpoint/map_location.h>
#include <lockstep/train/value.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace lockstep::checkpoint {

// The storages behind a value's tensors, each once, held until they are written.
class Storages {
 public:
  // `location`: what to record as the device of every storage; none: where it is.
  explicit Storages(std::optional<std::string> location) : location_(std::move(location)) {}

  // Throws Error naming the tensor for what a file cannot hold: sparse, quantized, without memory.
  archive::FileValue describe(const Value& value);
  // Each storage's key and bytes, in the order in which the value's tensors first name them.
  void for_each(
      const std::function<void(const archive::Storage&, const at::Tensor& bytes)>& visit) const;

 private:
  struct Entry {
    at::Tensor of;  // any tensor on it; keeps it alive
    archive::Storage storage;
    archive::Dtype dtype;
  };
  archive::TensorInFile describe(at::Tensor tensor, const std::string& path);

  std::optional<std::string> location_;
  std::vector<Entry> entries_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> places_;
};

// Fills a storage's bytes.
using ReadStorage = std::function<void(const archive::Storage& storage, void* to)>;

// The file's value with its tensors read, in the order in which it first names their storages, and put where `map_location` says. Tensors that shared
// memory when they were saved share it again. `locations`, where not null, is given each tensor's
// recorded device by its path ("model.fc1.weight").
Value attach(const archive::FileValue& value, const ReadStorage& read,
             const MapLocation& map_location, std::map<std::string, std::string>* locations);

}  // namespace lockstep::checkpoint
