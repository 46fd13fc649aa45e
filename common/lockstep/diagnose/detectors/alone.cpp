// A pitfall of processes that nobody told their ranks.
#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace lockstep::diagnose {
namespace {
Verdict silent_single_process(const Run& run);
}  // namespace

std::vector<Detector> alone_detectors() {
  return {{
      // Rule: processes that were each rank 0 of 1 at the same time, and recorded into one folder, drew the
      // same samples before each update and took the same learning rates, from the same parameters and with
      // the same settings. Not fooled by a sweep, whose processes differ in one of these.
      .slug = "silent-single-process",
      .equation = Equation::one_job,
      .whole = true,
      .needs = {"samples", "update"},
      .participants = Participants::ranks,
      .fewest = 1,
      .stage = Stage::start,
      .detect = silent_single_process,
  }};
}

namespace {
// What a process trained on, update by update: the samples that it drew before each, and the rates it took.
struct TrainingAlone {
  std::vector<std::vector<std::int64_t>> samples;
  std::vector<std::vector<double>> rates;
  std::tuple<std::vector<trace::Settings>, std::vector<trace::LayerModes>,
             std::vector<trace::Workers>, std::vector<trace::Moving>>
      settings;
  std::optional<double> first_loss;
  std::vector<double> start;  // the norms of the parameters before the first update
};

template <class T>
std::vector<T> all_told(const trace::ParticipantTrace& process) {
  std::vector<T> all;
  for (const auto& at : process.all<T>()) all.push_back(*at.event);
  return all;
}

TrainingAlone training_of(const trace::ParticipantTrace& process) {
  TrainingAlone training;
  training.settings = {all_told<trace::Settings>(process), all_told<trace::LayerModes>(process),
                       all_told<trace::Workers>(process), all_told<trace::Moving>(process)};
  if (const auto start = process.all<trace::Parameters>(); !start.empty())
    for (const auto& parameter : start.front().event->values)
      training.start.push_back(parameter.norm);
  if (const auto losses = process.all<trace::Loss>(); !losses.empty())
    training.first_loss = losses.front().event->backward_value;
  for (const auto& update : cut_at_updates(process)) {
    if (!update.updated) continue;
    auto& drawn = training.samples.emplace_back();
    for (const auto& at : update.all<trace::Samples>())
      if (at.event->phase == "train")
        drawn.insert(drawn.end(), at.event->ids.begin(), at.event->ids.end());
    training.rates.push_back(update.last<trace::Update>()->lr);
  }
  return training;
}

// GPUs may add in another order.
bool equal_but_for_rounding(double a, double b) {
  return std::abs(a - b) <= 1e-4 * std::abs(a);
}

// As far as both have come. Without a loss or parameters, nobody knows whether they train one model.
bool are_the_same(const TrainingAlone& a, const TrainingAlone& b) {
  const auto updates = static_cast<std::ptrdiff_t>(std::min(a.samples.size(), b.samples.size()));
  if (updates == 0 || a.samples.front().empty()) return false;
  if (!std::equal(a.samples.begin(), a.samples.begin() + updates, b.samples.begin())) return false;
  if (!std::equal(a.rates.begin(), a.rates.begin() + updates, b.rates.begin())) return false;
  if (a.settings != b.settings) return false;
  if (!a.first_loss && a.start.empty()) return false;
  if (a.first_loss && b.first_loss && !equal_but_for_rounding(*a.first_loss, *b.first_loss))
    return false;
  return std::equal(a.start.begin(), a.start.end(), b.start.begin(), b.start.end(),
                    equal_but_for_rounding);
}

Verdict silent_single_process(const Run& run) {
  if (run.trace.alone.empty())
    return not_applicable("no other process took itself for rank 0 of 1");
  const auto training = training_of(*run.ranks.front());
  std::string processes = std::to_string(run.ranks.front()->pid);
  std::size_t same = 1;
  for (const auto& other : run.trace.alone)
    if (are_the_same(training, training_of(other))) {
      processes += ", " + std::to_string(other.pid);
      ++same;
    }
  if (same == 1) return clean();
  return found(
      {.ranks = {0},
       .step = 0,
       .evidence = fmt::format("{} processes ({}) were each rank 0 of 1, and trained the same, "
                               "update by update: nobody told them RANK and WORLD_SIZE",
                               same, processes)});
}

}  // namespace
}  // namespace lockstep::diagnose
