#include <lockstep/base/hash.h>
#include <lockstep/launch/launch.h>
#include <lockstep/record/probes.h>
#include <unistd.h>

#include <array>
#include <thread>

namespace lockstep::record {

trace::Place place_of_this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const auto placement = launch::placement_from_environment().value_or(launch::Placement{});
  trace::Place place;
  place.node = hash_text(host.data());
  place.local_rank = placement.local_rank;
  place.local_world_size = placement.local_world_size;
  place.processors = std::thread::hardware_concurrency();
  place.threads = at::get_num_threads();
  return place;
}

}  // namespace lockstep::record
