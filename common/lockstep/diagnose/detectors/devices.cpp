// Pitfalls of one process that drives several devices. The participants are the devices.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/layers.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>
#include <optional>

namespace lockstep::diagnose {
namespace {
Verdict replica_buffers_lost(const Run& run);
Verdict odd_batch_split(const Run& run);
Verdict unequal_chunk_mean(const Run& run);
Verdict device_zero_bottleneck(const Run& run);
}  // namespace

std::vector<Detector> devices_detectors() {
  return {
      // Needs buffers of several devices and forwards in training mode. Rule: a buffer moves on
      // another device's copy, and never on the first device. Not fooled by evaluation mode, nor by
      // buffers that are constants, since those move nowhere; nor does a momentum of 0 show. Where
      // each rank drives one device it needs `layer_modes`, `buffers`,
      // `parameters` and `local_gradients`. Rule: a layer's weight moves in training mode, and its
      // running statistics end as they began. Not fooled by a layer in evaluation mode, or one that
      // this rank never runs.
      {.slug = "replica-buffers-lost",
       .equation = Equation::buffers,
       .needs = {"buffers"},
       .fewest = 1,
       .complete = false,
       .accounts_for = {"gradient-not-the-mean"},
       .detect = replica_buffers_lost},
      // Rule: a batch gave fewer parts than devices, and neither a forward nor an update followed.
      // Not fooled by fewer parts where the run went on with as many devices, nor by the batches of
      // an evaluation, as far as passes or forwards tell them.
      {.slug = "odd-batch-split",
       .equation = Equation::own_samples,
       .needs = {"split"},
       .participants = Participants::devices,
       .detect = odd_batch_split},
      // Rule: with unequal parts, the reduced gradient is the plain mean of the parts' and not the
      // mean weighted by their samples. Equal parts cannot show it.
      {.slug = "unequal-chunk-mean",
       .equation = Equation::loss_weights,
       .needs = {"split", "local_gradients", "reduced_gradients"},
       .participants = Participants::devices,
       .accounts_for = {"loss-weight-differs", "gradient-not-the-mean"},
       .detect = unequal_chunk_mean},
      // Advice. Rule: device 0 moves over 1.5 times the bytes of the median other device; with two
      // devices, where a gather looks symmetric, it receives over 1.5 times the other's gradient
      // bytes.
      {.slug = "device-zero-bottleneck",
       .equation = Equation::none,
       .needs = {"transfer"},
       .participants = Participants::devices,
       .detect = device_zero_bottleneck},
  };
}

namespace {
// Which buffers of a device were ever other than `start`.
std::vector<bool> moved(const trace::ParticipantTrace& device,
                        const std::vector<trace::Summary>& start) {
  std::vector<bool> result(start.size(), false);
  for (const auto& at : device.all<trace::Buffers>())
    for (std::size_t b = 0; b < start.size() && b < at.event->values.size(); ++b)
      result[b] = result[b] || at.event->values[b].hash != start[b].hash;
  return result;
}

// The splits of all steps; the first one of a step counts.
std::map<std::int64_t, std::vector<std::int64_t>> parts_by_step(const Run& run) {
  std::map<std::int64_t, std::vector<std::int64_t>> parts;
  for (const auto* device : run.ranks)
    for (const auto& at : device->all<trace::Split>()) parts.emplace(at.step, at.event->sizes);
  return parts;
}

std::string sizes_text(const std::vector<std::int64_t>& sizes) {
  return list(std::vector<int>(sizes.begin(), sizes.end()));
}

// Bytes each device moved: in both directions, and of gradients received.
struct Moved {
  std::vector<double> all, gradients_received;
};

Moved moved_bytes(const Run& run) {
  const auto count = static_cast<std::size_t>(run.world_size);
  Moved bytes{std::vector<double>(count), std::vector<double>(count)};
  for (const auto* device : run.ranks)
    for (const auto& at : device->all<trace::Transfer>()) {
      const auto from = static_cast<std::size_t>(at.event->from);
      const auto to = static_cast<std::size_t>(at.event->to);
      if (from == to || from >= count || to >= count) continue;
      bytes.all[from] += static_cast<double>(at.event->bytes);
      bytes.all[to] += static_cast<double>(at.event->bytes);
      if (at.event->what == "gradients")
        bytes.gradients_received[to] += static_cast<double>(at.event->bytes);
    }
  return bytes;
}

// The step of the first transfer in training; -1 where all come before it.
std::int64_t first_transfer(const Run& run) {
  std::int64_t first = -1;
  for (const auto* device : run.ranks)
    for (const auto& at : device->all<trace::Transfer>())
      if (at.step >= 0 && (first < 0 || at.step < first)) first = at.step;
  return first;
}

double median_of_others(std::vector<double> values) {
  values.erase(values.begin());
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// One tensor at the start and in what was recorded after updates.
struct History {
  std::size_t records = 0;  // after updates
  std::int64_t still = -1;  // the step since which it is as it was at the start; -1: it has moved
};
template <class T>
History history_of(const trace::ParticipantTrace& rank, std::size_t place) {
  History history;
  std::optional<std::uint64_t> start;
  for (const auto& at : rank.latest<T>()) {
    if (place >= at.event->values.size()) return {};
    const auto hash = at.event->values[place].hash;
    if (!start) start = hash;
    if (at.step < 0) continue;
    ++history.records;
    if (hash != *start) history.still = -1;
    if (hash == *start && history.still < 0) history.still = at.step;
  }
  return history;
}

// This rank's own backward reached the parameter: it ran the layer.
bool has_local_gradient(const trace::ParticipantTrace& rank, std::size_t place) {
  const auto steps = rank.latest<trace::LocalGradients>();
  return std::any_of(steps.begin(), steps.end(), [&](const auto& at) {
    return place < at.event->values.size() && at.event->values[place].norm > 0;
  });
}

// Ranks that each drive one device: the forward ran on a copy of the model, which was thrown away.
Verdict lost_on_ranks(const Run& run) {
  bool looked = false;
  std::vector<int> ranks;
  std::string buffer;
  std::int64_t step = -1;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto& rank = *run.ranks[r];
    for (const auto& layer : layers_in_training(rank)) {
      const auto statistics = history_of<trace::Buffers>(rank, layer.buffer);
      const auto weight = history_of<trace::Parameters>(rank, layer.parameter);
      if (statistics.records < 2 || weight.records == 0 || weight.still >= 0 ||
          !has_local_gradient(rank, layer.parameter))
        continue;
      looked = true;
      if (statistics.still < 0) continue;
      if (ranks.empty()) {
        const auto& names = rank.latest<trace::Buffers>().front().event->names;
        buffer = tensor_text("buffer", layer.buffer, names);
        step = statistics.still;
      }
      if (ranks.empty() || ranks.back() != run.numbers[r]) ranks.push_back(run.numbers[r]);
    }
  }
  if (!looked)
    return not_triggered("no layer was recorded that keeps running statistics and is trained");
  if (ranks.empty()) return clean();
  return found({.ranks = ranks,
                .step = step,
                .evidence = buffer + " is what it was at the start, though its layer is in "
                                     "training mode and the layer's weight moves"});
}

Verdict replica_buffers_lost(const Run& run) {
  if (!run.devices) return lost_on_ranks(run);
  if (run.world_size < 2) return not_applicable("there is one device");
  if (!run.complete) return not_triggered("a device left no trace");
  const auto first = run.ranks.front()->all<trace::Buffers>();
  if (first.size() < 2 || first.front().event->values.empty())
    return not_triggered("the first device's buffers were not recorded before and after a step");
  int forward = 0, training = 0, recorded = 0;
  for (const auto* device : run.ranks) {
    const auto forwards = device->all<trace::Forward>();
    forward += !forwards.empty();
    training += std::any_of(forwards.begin(), forwards.end(),
                            [](const auto& at) { return at.event->training; });
    recorded += !device->all<trace::Buffers>().empty();
  }
  if (forward < 2) return not_triggered("no forward was recorded on two devices");
  if (training < 2) return clean();
  if (recorded < 2) return not_triggered("no other device's buffers were recorded");

  const auto& start = first.front().event->values;
  std::vector<std::vector<bool>> moves;  // by device
  for (const auto* device : run.ranks) moves.push_back(moved(*device, start));
  for (std::size_t b = 0; b < start.size(); ++b) {
    if (moves.front()[b]) continue;
    for (std::size_t d = 1; d < moves.size(); ++d) {
      if (!moves[d][b]) continue;
      return found({.ranks = {0},
                    .step = first[1].step,
                    .evidence = fmt::format("{} never moved on device 0 in {} records, and did on "
                                            "device {}'s copy, while {} devices trained",
                                            tensor_text("buffer", b, first.front().event->names),
                                            first.size(), run.numbers[d], training)});
    }
  }
  return clean();
}

// The last split of one device's trace that trained nothing: neither a forward nor an update came
// after it, and it is none of an evaluation, as far as passes or else forwards tell.
struct OpenSplit {
  const trace::Split* split = nullptr;
  std::int64_t step = -1;
};

OpenSplit open_split(const trace::ParticipantTrace& device) {
  OpenSplit open;
  bool in_training = false, in_evaluation = false;  // passes; the second may lie in the first
  bool evaluates = false;                           // the last forward did
  for (const auto& event : device.events) {
    if (const auto* begin = event.as<trace::PassBegin>()) {
      in_evaluation = begin->phase == "evaluation";
      in_training = in_training || !in_evaluation;
    }
    if (const auto* end = event.as<trace::PassEnd>())
      (end->phase == "evaluation" ? in_evaluation : in_training) = false;
    if (const auto* forward = event.as<trace::Forward>()) {
      evaluates = !forward->training;
      open = {};
    }
    if (event.is<trace::Update>()) {
      evaluates = false;
      open = {};
    }
    if (const auto* split = event.as<trace::Split>())
      open =
          in_evaluation || (!in_training && evaluates) ? OpenSplit{} : OpenSplit{split, event.step};
  }
  return open;
}

Verdict odd_batch_split(const Run& run) {
  for (const auto* device : run.ranks) {
    const auto [open, step] = open_split(*device);
    if (open == nullptr || open->devices <= static_cast<std::int64_t>(open->sizes.size())) continue;
    std::vector<int> without;
    for (auto d = static_cast<int>(open->sizes.size());
         d < std::min<std::int64_t>(open->devices, run.world_size); ++d)
      without.push_back(d);
    return found(
        {.ranks = without,
         .step = step,
         .evidence = fmt::format("the batch gave {} (of {}) for {} devices, none for device {}, "
                                 "and neither a forward nor an update followed",
                                 plural(static_cast<std::int64_t>(open->sizes.size()), "part"),
                                 sizes_text(open->sizes), open->devices, list(without))});
  }
  return clean();
}

Verdict unequal_chunk_mean(const Run& run) {
  const auto parts = parts_by_step(run);
  bool unequal = false, looked = false;
  for (const auto& step : gradient_steps(run)) {
    const auto at = parts.find(step.step);
    if (at == parts.end()) continue;
    const auto& sizes = at->second;
    if (sizes.empty()) continue;
    if (std::equal(sizes.begin() + 1, sizes.end(), sizes.begin())) continue;
    unequal = true;
    if (sizes.size() != step.local.size()) continue;
    const auto plain = mean(step.local);
    const auto weighted = mean(step.local, std::vector<double>(sizes.begin(), sizes.end()));
    if (distance(plain, weighted) < 10 * kRounding) continue;
    looked = true;
    const auto& reduced = step.reduced.front();
    if (distance(reduced, plain) > kRounding) continue;
    return found(
        {.ranks = run.numbers,
         .step = step.step,
         .evidence = fmt::format("parts of {} samples weigh the same: the gradient is the plain "
                                 "mean of the parts' and lies {} (relative) from the batch's",
                                 sizes_text(sizes), number(distance(reduced, weighted)))});
  }
  if (looked) return clean();
  return unequal ? not_triggered("no unequal split has every part's gradient recorded")
                 : not_applicable("all recorded parts are equal");
}

Verdict device_zero_bottleneck(const Run& run) {
  constexpr double kTooMany = 1.5;
  const auto bytes = moved_bytes(run);
  const bool pair = run.world_size == 2;
  const auto& of = pair ? bytes.gradients_received : bytes.all;
  if (std::all_of(of.begin(), of.end(), [](double b) { return b == 0; }))
    return not_triggered("no transfer between devices was recorded");
  const double others = median_of_others(of);
  if (of.front() <= kTooMany * others) return clean();
  return found(
      {.severity = Severity::advice,
       .ranks = {0},
       .step = first_transfer(run),
       .evidence = fmt::format("device 0 {} {} bytes; the {}: {} bytes",
                               pair ? "received gradients of" : "moved", number(of.front()),
                               pair ? "other device" : "median other device", number(others))});
}

}  // namespace
}  // namespace lockstep::diagnose
