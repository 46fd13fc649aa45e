// Where a loaded tensor goes: the map_location of Python's torch.load.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>

namespace lockstep {

// A location is the device that a storage was saved from, as text: "cpu", "cuda:0".
class MapLocation {
 public:
  // Nothing where the storage is to go to the location it was saved from.
  using Function = std::function<std::optional<c10::Device>(const std::string& location)>;

  MapLocation() = default;  // all to where they were saved from
  MapLocation(c10::Device device);
  MapLocation(const char* device) : MapLocation(c10::Device(device)) {}
  // For example {{"cuda:0", "cuda:1"}}; locations not named stay.
  MapLocation(std::map<std::string, std::string> devices);
  MapLocation(Function function) : function_(std::move(function)) {}

  // Throws Error, which says what to do, for a device that this machine lacks.
  c10::Device operator()(const std::string& location) const;

 private:
  Function function_;
};

}  // namespace lockstep
