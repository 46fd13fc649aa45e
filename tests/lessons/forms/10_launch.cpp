#include <lockstep/base/processors.h>

#include <algorithm>

#include "../forms.h"

namespace lockstep::testing {

namespace {

// Two nodes, in name; two ranks are on one.
int devices_of(int world_size) {
  return std::max(2, (world_size + 1) / 2);
}
std::vector<int> ranks_where(int world_size, bool (*is_one)(int rank, int devices)) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size; ++rank)
    if (is_one(rank, devices_of(world_size))) ranks.push_back(rank);
  return ranks;
}
std::vector<int> rank_zero(int) {
  return {0};
}
std::vector<int> every_rank(int world_size) {
  return ranks_where(world_size, [](int, int) { return true; });
}
std::vector<int> of_the_second_node(int world_size) {
  return ranks_where(world_size, [](int rank, int devices) { return rank >= devices; });
}
std::vector<int> with_a_local_rank(int world_size) {
  return ranks_where(world_size, [](int rank, int devices) { return rank % devices > 0; });
}
std::vector<int> with_company(int world_size) {
  const int devices = devices_of(world_size);
  auto ranks = every_rank(world_size);
  if (world_size == devices + 1) ranks.pop_back();  // alone on its node
  return ranks;
}
double of_the_first_node(int world_size) {
  return std::min(world_size, devices_of(world_size));
}

FormCase named(FormCase form, std::vector<int> (*ranks)(int)) {
  form.ranks = ranks;
  return form;
}
FormCase crashes(std::string form, double reached, std::vector<int> (*ranks)(int),
                 int min_world_size = 2) {
  return named(exactly(std::move(form), always(reached), min_world_size, 0, "crash"), ranks);
}
FormCase advised(FormCase form) {
  form.advice = true;
  return form;
}

// Each rank's samples, drawn once by each node that has the rank's shard.
double drawn_again(int world_size) {
  const int devices = devices_of(world_size);
  return 96.0 * world_size * (world_size - devices) / devices;
}
double threads_too_many(int world_size) {
  const int processors = std::max(2, static_cast<int>(processors_of_this_process().size()));
  return world_size * processors - std::max(processors, world_size);
}
double squared(int world_size) {
  return world_size * world_size;
}

}  // namespace

std::vector<FormCase> forms_10() {
  return {
      right("correct-devices"),
      crashes("rank-as-device-index", 0, of_the_second_node, 3),
      crashes("visible-devices-remapped", 0, with_a_local_rank),
      named(exactly("duplicate-gpu", of_the_first_node), with_company),
      named(exactly("device-not-set", of_the_first_node), with_a_local_rank),
      right("near-miss-rank-modulo-devices", 3),
      right("near-miss-shown-in-another-order"),
      right("near-miss-one-device-each"),
      right("near-miss-group-is-told"),
      right("correct-shards", 3),
      named(exactly("world-size-from-device-count", drawn_again, 3), every_rank),
      right("near-miss-data-a-node", 3),
      right("correct-threads"),
      advised(named(exactly("thread-oversubscription", threads_too_many), every_rank)),
      right("near-miss-all-threads-for-one"),
      right("correct-meeting"),
      crashes("fixed-port", 0, rank_zero),
      crashes("wrong-network-interface", 0, rank_zero),
      crashes("group-never-destroyed", 1, rank_zero),
      right("near-miss-other-job-has-ended"),
      right("near-miss-another-interface-for-all"),
      right("near-miss-rank-zero-leaves-last"),
      right("correct-spawning"),
      named(exactly("spawn-under-launcher", squared), every_rank),
      right("near-miss-helper-process"),
      right("correct-preparing"),
      crashes("every-rank-prepares-data", 0, every_rank),
      right("near-miss-each-under-its-own-name"),
  };
}

}  // namespace lockstep::testing
