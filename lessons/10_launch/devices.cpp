// Lesson 10, part "devices": which device is whose.
//
// Concept:  RANK counts through the whole job, LOCAL_RANK from 0 on every node, and a device's
//           index counts the devices that this process sees. One rank, one device: set it before
//           the process group is made.
// Symptom:  "invalid device ordinal" on the second node only, or where the launcher hides devices.
//           Two ranks on one device (NCCL: "Duplicate GPU detected"). Or only less memory on device
//           0 of each node, where all its ranks have a context. (Over NCCL
//           lockstep::init_process_group sets cuda:LOCAL_RANK itself. Python's leaves it to you: a
//           barrier takes the current device.)
//
// Nodes and devices are simulated by CUDA's rules; training is on the CPU.
#include <lockstep/base/error.h>

#include <map>
#include <set>

#include "parts.h"

namespace {

using namespace lockstep;

// What a process sees of its node: the devices with these numbers, indexed from 0.
class Devices {
 public:
  Devices(RankContext& context, const Node& node, std::vector<int> shown)
      : context_(context), node_(node), shown_(std::move(shown)) {}
  int count() const { return static_cast<int>(shown_.size()); }
  int current() const { return current_; }
  void set_device(int index) {
    if (!has(index))
      throw Error("invalid device ordinal: there is no device " + std::to_string(index) +
                  " among the " + std::to_string(count()) + " that this process sees");
    current_ = index;
  }
  // This process has memory there from now on, which the oracle counts.
  void hold_memory(int index) {
    if (held_.insert(index).second) add_figure(context_, "memory_on", uuid(index));
  }
  // For the trace: that one is for this "moment".
  void tell(const std::string& moment, int index) {
    context_.told().tell(trace::Device{moment, index, count(), node_.devices,
                                       static_cast<std::uint64_t>(uuid(index))});
  }

 private:
  bool has(int index) const { return index >= 0 && index < count(); }
  // One number for each device of the job, as its UUID is; 0 where there is none.
  int uuid(int index) const {
    return has(index)
               ? 1 + node_.number * node_.devices + shown_.at(static_cast<std::size_t>(index))
               : 0;
  }

  RankContext& context_;
  Node node_;
  std::vector<int> shown_;
  int current_ = 0;  // until it is set
  std::set<int> held_;
};

// Makes the process group, whose collectives take that device.
void make_group(RankContext& context, Devices& devices, int index) {
  devices.tell("group", index);
  context.join(context.patience());
  devices.hold_memory(index);
}

std::vector<int> all_devices_of(const Node& node) {
  std::vector<int> all;
  for (int device = 0; device < node.devices; ++device) all.push_back(device);
  return all;
}

int choose_device(const RankContext& context, const Node& node, const Devices& devices,
                  const Fault& fault) {
  if (fault("rank-as-device-index")) {
    return context.rank();
  } else if (fault("duplicate-gpu")) {
    return 0;
  } else if (fault("near-miss-one-device-each")) {
    // A near miss: the launcher shows each rank its own device only, and that one's index is 0.
    return 0;
  } else if (fault("near-miss-rank-modulo-devices")) {
    // A near miss: right where ranks fill one node after the other, as here (not under
    // `srun -m cyclic`).
    return context.rank() % devices.count();
  } else {
    return node.local_rank;
  }
}

void train(RankContext& context, const Fault& fault) {
  const Node node(context);
  tell_place(context, node.place());

  auto shown = all_devices_of(node);
  if (fault("visible-devices-remapped") || fault("near-miss-one-device-each"))
    shown = {node.local_rank};  // By a launcher that shows each rank its own only.
  if (fault("near-miss-shown-in-another-order")) std::reverse(shown.begin(), shown.end());
  Devices devices(context, node, shown);

  const int mine = choose_device(context, node, devices, fault);
  devices.tell("chosen", mine);

  // A group takes the current device: 0 until it is set.
  if (fault("device-not-set")) {
    make_group(context, devices, devices.current());
    devices.set_device(mine);
  } else if (fault("near-miss-group-is-told")) {
    // A near miss: the group is bound to its device.
    make_group(context, devices, mine);
    devices.set_device(mine);
  } else {
    devices.set_device(mine);
    make_group(context, devices, devices.current());
  }
  devices.hold_memory(mine);
  train_a_little(context);
}

// The ranks with memory on one device, at the device that most of them share.
Measured most_on_one_device(const Outcomes& outcomes) {
  std::map<double, double> ranks;
  double most = 0;
  for (const auto& outcome : outcomes)
    for (const double uuid : outcome.figures.at("memory_on")) most = std::max(most, ++ranks[uuid]);
  return {.expected = 1, .observed = most};
}

}  // namespace

Part devices_part() {
  const Oracle trained{"ranks that trained on a device", ranks_that_trained};
  const Oracle sharing{"ranks with memory on the device that most share", most_on_one_device};
  return {
      .name = "devices",
      .run = train,
      .broken = {{.slug = "rank-as-device-index",
                  .what = "RANK is taken for the device's index, on two nodes",
                  .oracle = trained,
                  .crashes = true,
                  .min_world_size = 3},
                 {.slug = "visible-devices-remapped",
                  .what = "each rank sees its own device only, and indexes by LOCAL_RANK",
                  .oracle = trained,
                  .crashes = true},
                 {.slug = "duplicate-gpu", .what = "every rank takes device 0", .oracle = sharing},
                 {.slug = "device-not-set",
                  .what = "the device is set after the process group is made",
                  .oracle = sharing}},
      .near_misses = {{.name = "near-miss-rank-modulo-devices",
                       .slug = "rank-as-device-index",
                       .naive_check = "the device's index is computed from RANK"},
                      {.name = "near-miss-shown-in-another-order",
                       .slug = "visible-devices-remapped",
                       .naive_check = "the index is not the device's own number on its node"},
                      {.name = "near-miss-one-device-each",
                       .slug = "duplicate-gpu",
                       .naive_check = "all ranks of a node use the index 0"},
                      {.name = "near-miss-group-is-told",
                       .slug = "device-not-set",
                       .naive_check = "set_device is called after init_process_group"}},
      .participants = Participants::strangers};
}
