#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <lockstep/base/error.h>
#include <lockstep/checkpoint/map_location.h>

#include <utility>

namespace lockstep {
namespace {

c10::Device parse(const std::string& location) {
  try {
    return c10::Device(location);
  } catch (const c10::Error&) {
    throw Error("\"" + location.substr(0, 80) + "\" is no device that torch knows");
  }
}

bool is_here(const c10::Device& device) {
  if (device.is_cpu()) return true;
  if (device.is_meta() || !c10::impl::hasDeviceGuardImpl(device.type())) return false;
  const int count = c10::impl::getDeviceGuardImpl(device.type())->deviceCount();
  return std::max<int>(device.index(), 0) < count;
}

}  // namespace

MapLocation::MapLocation(c10::Device device)
    : function_([device](const std::string&) { return std::optional(device); }) {}

MapLocation::MapLocation(std::map<std::string, std::string> devices)
    : function_([devices = std::move(devices)](
                    const std::string& location) -> std::optional<c10::Device> {
        const auto found = devices.find(location);
        if (found == devices.end()) return std::nullopt;
        return parse(found->second);
      }) {}

c10::Device MapLocation::operator()(const std::string& location) const {
  const auto chosen = function_ ? function_(location) : std::nullopt;
  const auto device = chosen ? *chosen : parse(location);
  if (is_here(device)) return device;
  if (chosen)
    throw Error("map_location sends " + location + " to " + device.str() +
                ", which this machine lacks");
  throw Error("was saved from " + location +
              ", which this machine lacks. Say where it should go: map_location \"cpu\", or the "
              "rank's own device");
}

}  // namespace lockstep
