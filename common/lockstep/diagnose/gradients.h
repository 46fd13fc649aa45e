// Recorded gradients and parameters of all ranks.
#pragma once

#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/vectors.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace lockstep::diagnose {

// Every rank's parameters at one point.
using Replicas = std::vector<const std::vector<trace::Summary>*>;
// Of events that hold values of tensors, one of each rank.
template <class T>
Replicas replicas_of(const std::vector<const T*>& ranks) {
  Replicas replicas;
  for (const auto* rank : ranks) replicas.push_back(&rank->values);
  return replicas;
}
// Whether the ranks' parameters have the same shapes at this step. Else they hold parts of a model, or one of them records
// another model, such as a teacher that it trained before; values of theirs are not compared.
bool have_one_layout(const Run& run, std::int64_t step);
inline constexpr const char* kOtherShapes = "the ranks' parameters have other shapes";

// By the update that they were recorded after (-1: before the first), where have_one_layout.
using ReplicasByStep = std::map<std::int64_t, Replicas>;
const ReplicasByStep& replicas_by_step(const Run& run);

// How far replicas are apart.
struct Spread {
  double distance = 0;     // relative; of those that are finite, the largest from the first one
  std::size_t finite = 0;  // how many hold finite values only
};
Spread spread_of(const Replicas& replicas);

// For each replica the first one that it equals: its own place where there is none. `tensor` is the
// first in which one differs from the first replica; -1 = all are equal.
struct Groups {
  std::vector<std::size_t> of;
  int tensor = -1;
};
Groups groups_of_equal(const Replicas& replicas);

// A rank's events of a kind that belong to updates: none of a step that was left out.
template <class T>
auto of_updates(const trace::ParticipantTrace& rank) {
  const auto all = rank.all<T>();
  const auto scaled = rank.all<trace::ScaledStep>();
  if (std::ranges::all_of(scaled, [](const auto& at) { return at.event->updates; })) return all;
  const auto updates = cut_at_updates(rank);
  return all.where([&](const auto& at) {
    const auto behind = std::ranges::upper_bound(updates, at.place, {}, &UpdateStretch::begin);
    return !std::prev(behind)->left_out || at.step != std::prev(behind)->step;
  });
}

// Every rank's events of a kind of which an update has one, by update, where all ranks have it.
template <class T>
std::map<std::int64_t, std::vector<const T*>> by_step(const Run& run) {
  std::map<std::int64_t, std::vector<const T*>> steps;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : of_updates<T>(*run.ranks[r]))
      if (auto& there = steps[at.step]; there.size() == r) there.push_back(at.event);
  std::erase_if(steps, [&](const auto& step) { return step.second.size() < run.ranks.size(); });
  return steps;
}
// One rank's; of several in an update the last.
template <class T>
std::map<std::int64_t, const T*> by_step(const trace::ParticipantTrace& rank) {
  std::map<std::int64_t, const T*> steps;
  for (const auto& at : of_updates<T>(rank)) steps[at.step] = at.event;
  return steps;
}

// What was recorded of one step's gradients.
struct GradientStep {
  std::int64_t step = 0;
  std::vector<Vector> local;    // of every rank; of the devices that had a part
  std::vector<double> samples;  // behind each; 0 = not known
  std::vector<Vector> reduced;  // of every rank; of devices, the first one's
  // The plain mean of the local gradients; and, where their samples are known and unequal, the mean
  // weighted by them.
  std::vector<Vector> means;
};
inline constexpr const char* kNoGradients = "no step has every rank's local and reduced gradients";

// Steps of which anything needed is missing are left out; all of them where a rank left no trace; and those from an update
// on that some rank left out.
const std::vector<GradientStep>& gradient_steps(const Run& run);

// Every rank goes by its own gradient: reduced = local on each, or a multiple of it (clipped), and not all
// the same.
bool is_unreduced(const GradientStep& step);

// How many times the mean of the local gradients the reduced one is; nothing where it is no
// multiple of it within `tolerance`, or the ranks do not agree.
std::optional<double> reduction_scale(const GradientStep& step, double tolerance);

// The same of the gradient as it was before it was clipped.
std::optional<double> unclipped_scale(const Run& run, const GradientStep& step);
// A gradient that is `times` the right one was clipped to what the right one would have been.
bool is_hidden_by_clipping(const Run& run, std::int64_t step, double times);

// The scalars backward() was called on in a step, over the mean loss of its samples: 1 for a mean
// loss, 1/W for one divided by W. Several backwards of a step add up, as their gradients do.
std::optional<double> loss_scale(const Run& run, std::int64_t step);

// The steps of which both are known: how many times the mean of the local gradients the reduced one is, how many
// times the mean loss what backward() was called on, and a rank's samples behind it, on average. A gradient that is
// clipped counts as it was before.
struct Scales {
  std::int64_t step = 0;
  double reduction = 1, loss = 1, samples = 0;
  bool hidden = false;  // the gradient of the mean loss would have been clipped to the same
};
const std::vector<Scales>& scales(const Run& run);

// DistributedDataParallel took the parameters over, on every rank.
bool has_ddp(const Run& run);
// The ranks are replicas of one model: has_ddp; or in some step their local gradients differ and the reduced ones do
// not; or they begin with equal parameters, and reduce as many numbers later on; or are_averaged
// or send_their_parts (averaging.h).
bool train_one_model(const Run& run);
inline constexpr const char* kNotOneModel = "no sign that these ranks train one model";

// Some rank says that its losses are to count as the mean over the global batch.
bool declares_mean_loss(const Run& run);
inline constexpr const char* kNoMeanLoss = "the run does not declare a mean loss";

// Within `tolerance` of a positive target, relative to it.
bool is_near(double value, double target, double tolerance);

}  // namespace lockstep::diagnose
