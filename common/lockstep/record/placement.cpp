#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/base/hash.h>
#include <lockstep/base/processors.h>
#include <lockstep/launch/launch.h>
#include <lockstep/record/probes.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>

namespace lockstep::record {

namespace {

std::string machine() {
  const std::filesystem::path boot = "/proc/sys/kernel/random/boot_id";
  if (std::filesystem::exists(boot)) return read_file(boot);
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return host.data();
}

}  // namespace

trace::Placement placement_of_this_process() {
  const auto placement = launch::placement_from_environment().value_or(launch::Placement{});
  const auto processors = processors_of_this_process();
  trace::Placement place;
  place.node = hash_text(machine());
  place.local_rank = placement.local_rank;
  place.local_world_size = placement.local_world_size;
  place.processors = static_cast<std::int64_t>(processors.size());
  place.processor_set = hash_bytes(processors.data(), processors.size() * sizeof(int));
  place.threads = at::get_num_threads();
  return place;
}

void record_placement(trace::Writer& writer) {
  try {
    writer.record(placement_of_this_process());
  } catch (const std::exception&) {  // a malformed variable, or a machine that does not tell
  }
}

std::function<void(const StoreOpening&)> tell_of_store(std::shared_ptr<trace::Writer> writer) {
  return [writer = std::move(writer)](const StoreOpening& opening) {
    writer->record(trace::StoreCall{opening.serves ? "serve" : "connect", opening.address,
                                    opening.port, opening.error});
  };
}

}  // namespace lockstep::record
