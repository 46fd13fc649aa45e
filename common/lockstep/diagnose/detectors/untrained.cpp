// Parameters that get a gradient, and that no update moves.
#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/differences.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>

#include <algorithm>
#include <optional>

namespace lockstep::diagnose {
namespace {
Verdict parameters_not_updated(const Run& run);
}  // namespace

std::vector<Detector> untrained_detectors() {
  return {
      // Rule: from the first recorded values to the last a parameter is the same to the bit, though each recorded
      // gradient of it is more than rounding and other parameters move; or parameters that losses lead to, and that no
      // engine and no optimizer is known to hold, have not changed by the end. Advice, since a program may train a part of a
      // model and not say that the rest is frozen. Not fooled by a group whose rate is zero, by a bias
      // before BatchNorm, whose gradient is zero but for rounding, nor by parameters of 16 or 8 bits, whose updates may
      // be rounded to nothing. A violation: parameters that never get a gradient, where a reentrant activation checkpoint
      // was given inputs without one.
      {.slug = "parameters-not-updated",
       .equation = Equation::all_moved,
       .whole = true,
       .needs = {"model", "parameters", "local_gradients", "update"},
       .fewest = 1,
       .detect = parameters_not_updated},
  };
}

namespace {
using Values = std::vector<trace::Summary>;

constexpr int kGradients = 4;  // that were recorded, at the least
constexpr double kRoundedPart =
    1e-5;  // of a step's largest gradient: below, it may be rounding alone

// What a rank recorded of its last model.
struct LastTraining {
  const trace::Model* model = nullptr;
  const Values* first = nullptr;  // parameters
  const Values* last = nullptr;
  std::int64_t last_step = -1;
  std::vector<const Values*> gradients;
  std::vector<double> largest;     // of each of these, the greatest norm
  std::int64_t step = 0;           // of the first of them
  std::vector<bool> rate_is_zero;  // of each parameter group, in every update
};

LastTraining last_training(const trace::ParticipantTrace& rank) {
  LastTraining now;
  const auto is_model = [](const trace::Event& event) { return event.is<trace::Model>(); };
  const auto last = std::find_if(rank.events.rbegin(), rank.events.rend(), is_model);
  const Stretch behind{&rank, static_cast<std::size_t>(rank.events.rend() - last),
                       rank.events.size()};
  if (last != rank.events.rend()) now.model = last->as<trace::Model>();
  for (const auto& at : behind.all<trace::Parameters>()) {
    if (now.first == nullptr) now.first = &at.event->values;
    now.last = &at.event->values;
    now.last_step = at.step;
  }
  for (const auto& at : behind.all<trace::LocalGradients>()) {
    if (now.gradients.empty()) now.step = at.step;
    now.gradients.push_back(&at.event->values);
    double largest = 0;
    for (const auto& each : at.event->values) largest = std::max(largest, each.norm);
    now.largest.push_back(largest);
  }
  for (const auto& at : behind.all<trace::Update>()) {
    const auto& rates = at.event->lr;
    now.rate_is_zero.resize(std::max(now.rate_is_zero.size(), rates.size()), true);
    for (std::size_t group = 0; group < rates.size(); ++group)
      now.rate_is_zero[group] = now.rate_is_zero[group] && rates[group] == 0;
  }
  return now;
}

bool gets_gradients(const LastTraining& training, std::size_t tensor) {
  for (std::size_t i = 0; i < training.gradients.size(); ++i)
    if ((*training.gradients[i])[tensor].norm <= kRoundedPart * training.largest[i]) return false;
  return true;
}

// The losses lead to them, and nobody wraps or optimizes them.
std::optional<Finding> unknown_ones(const Run& run) {
  const auto told = run.ranks.front()->latest<trace::Untrained>();
  if (told.empty() || told.back().event->leaves.empty()) return std::nullopt;
  const auto& leaves = told.back().event->leaves;
  std::vector<std::string> shapes;
  for (const auto& leaf : leaves) shapes.push_back(shape_text(leaf.shape));
  const auto first = std::ranges::min(leaves, {}, &trace::UntrainedLeaf::step).step;
  return Finding{
      .severity = Severity::advice,
      .ranks = run.numbers,
      .step = first,
      .evidence = fmt::format("{}, of shape {}, {} to the loss, and at the end of the run {} at "
                              "step {}: no optimizer that was recorded holds {}",
                              plural(static_cast<std::int64_t>(shapes.size()), "parameter"),
                              some_of(shapes), shapes.size() > 1 ? "lead" : "leads",
                              shapes.size() > 1 ? "are what they were" : "is what it was", first,
                              shapes.size() > 1 ? "them" : "it")};
}

// No backward brings them a gradient, since a checkpoint is given inputs that have none.
std::optional<Finding> checkpointed_ones(const Run& run) {
  if (run.ranks.front()->latest<trace::CheckpointWithoutGradient>().empty()) return std::nullopt;
  const auto training = last_training(*run.ranks.front());
  if (training.gradients.empty()) return std::nullopt;
  std::vector<std::size_t> without;
  for (std::size_t t = 0; t < training.model->names.size(); ++t)
    if (std::ranges::all_of(training.gradients, [&](const Values* values) {
          return t < values->size() && (*values)[t].sketch.empty();
        }))
      without.push_back(t);
  if (without.empty() || without.size() == training.model->names.size()) return std::nullopt;
  const auto more = static_cast<std::int64_t>(without.size()) - 1;
  return Finding{
      .ranks = run.numbers,
      .step = training.step,
      .evidence = fmt::format(
          "{}{} no gradient in any recorded step: a reentrant activation checkpoint is given no "
          "input that requires one. use_reentrant=False mends it",
          tensor_text("parameter", without.front(), training.model->names),
          more > 0 ? fmt::format(" and {} get", plural(more, "other parameter")) : " gets")};
}

Verdict known_ones(const Run& run) {
  const auto training = last_training(*run.ranks.front());
  if (training.first == nullptr || training.gradients.size() < kGradients)
    return not_triggered(fmt::format(
        "fewer than {} steps have the parameters and gradients of one model recorded", kGradients));
  const auto& rates = training.rate_is_zero;
  if (std::find(rates.begin(), rates.end(), true) != rates.end())
    return not_triggered("a parameter group has a learning rate of zero");
  const auto tensors = training.first->size();
  const auto is_whole = [&](const Values* values) { return values->size() == tensors; };
  if (!is_whole(training.last) || training.model->dtypes.size() != tensors ||
      !std::all_of(training.gradients.begin(), training.gradients.end(), is_whole))
    return not_triggered("not all of the model's parameters and gradients were recorded");
  std::vector<std::size_t> unmoved;
  bool others_move = false;
  for (std::size_t t = 0; t < tensors; ++t) {
    const bool moved = (*training.first)[t].hash != (*training.last)[t].hash;
    others_move = others_move || moved;
    if (!moved && !is_narrow(training.model->dtypes[t]) && gets_gradients(training, t))
      unmoved.push_back(t);
  }
  if (unmoved.empty() || !others_move) return clean();
  const auto more = static_cast<std::int64_t>(unmoved.size()) - 1;
  return found(
      {.severity = Severity::advice,
       .ranks = run.numbers,
       .step = training.step,
       .evidence = fmt::format(
           "{}{} {} a gradient in each of {}, and after step {} {} what {} at the start, while "
           "others have moved: perhaps no optimizer holds {}",
           tensor_text("parameter", unmoved.front(), training.model->names),
           more > 0 ? " and " + plural(more, "other parameter") : "", more > 0 ? "get" : "gets",
           plural(static_cast<std::int64_t>(training.gradients.size()), "recorded step"),
           training.last_step, more > 0 ? "are" : "is", more > 0 ? "they were" : "it was",
           more > 0 ? "them" : "it")});
}

Verdict parameters_not_updated(const Run& run) {
  if (auto without = checkpointed_ones(run)) return found(std::move(*without));
  auto verdict = known_ones(run);
  if (verdict.state == State::found) return verdict;
  auto unknown = unknown_ones(run);
  return unknown ? found(std::move(*unknown)) : verdict;
}

}  // namespace
}  // namespace lockstep::diagnose
