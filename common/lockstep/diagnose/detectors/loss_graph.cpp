// Pitfalls of losses that other ranks' values go into, and their gradients do not come back from.
#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace lockstep::diagnose {
namespace {
Verdict gather_loses_graph(const Run& run);
Verdict loss_all_reduced_in_place(const Run& run);
}  // namespace

// Both need one loss of every rank in a step, and a collective and an update after it.
std::vector<Detector> loss_graph_detectors() {
  return {
      // Rule: every rank's loss is of all ranks' samples, the same and unscaled; an all-gather
      // comes before it, and no collective after it could bring the gathered values' gradients
      // back. Not fooled by a loss times W, which makes up for it, nor by a loss of a rank's own
      // samples against gathered ones (where a gather without gradients, for a metric say, cannot
      // be told from a loss's). Or: a loss is computed from what an all-reduce overwrote (`graph_cut`).
      {.slug = "gather-loses-graph",
       .equation = Equation::mean_gradient,
       .needs = {"samples", "loss", "collective", "update"},
       .or_needs = "graph_cut",
       .participants = Participants::ranks,
       .stage = Stage::ranks_differ,
       .accounts_for = {"gradient-not-the-mean"},
       .detect = gather_loses_graph},
      // Rule: a scalar is summed over the ranks, and the loss that backward starts from is the mean
      // of the ranks' losses, which differ; no scalar is summed in backward. Not fooled by a
      // differentiable all-reduce, nor by one that comes after backward.
      {.slug = "loss-all-reduced-in-place",
       .equation = Equation::mean_gradient,
       .needs = {"loss", "collective", "update"},
       .participants = Participants::ranks,
       .accounts_for = {"gradient-not-the-mean"},
       .detect = loss_all_reduced_in_place},
  };
}

namespace {
// One update of one rank that recorded one loss: what it called on either side of it.
struct LossStep {
  std::int64_t samples = 0;  // drawn for training
  int losses = 0;
  bool updated = false;                                 // so that backward has called all it calls
  const trace::Loss* loss = nullptr;                    // the last
  std::vector<const trace::Collective*> before, after;  // after: in backward, or beside it
  double own_mean() const { return loss->sum / static_cast<double>(loss->count); }
};

std::map<std::int64_t, LossStep> loss_steps(const trace::ParticipantTrace& rank) {
  std::map<std::int64_t, LossStep> steps;
  each_of<trace::Samples, trace::Loss, trace::Update, trace::Collective>(
      rank, 0, [&](std::size_t, const trace::Event& event) {
        if (event.step < 0) return;
        auto& step = steps[event.step];
        if (const auto* samples = event.as<trace::Samples>(); samples && samples->phase == "train")
          step.samples += static_cast<std::int64_t>(samples->ids.size());
        if (const auto* loss = event.as<trace::Loss>()) {
          ++step.losses;
          step.loss = loss;
        }
        if (event.is<trace::Update>()) step.updated = true;
        if (const auto* call = event.as<trace::Collective>())
          (step.losses == 0 ? step.before : step.after).push_back(call);
      });
  return steps;
}

// A step as all ranks took it, by rank.
struct CommonStep {
  std::int64_t step = 0;
  std::vector<LossStep> ranks;

  template <class Judge>
  bool on_all(Judge judge) const {
    return std::all_of(ranks.begin(), ranks.end(), judge);
  }
};

// The steps in which every rank recorded one loss, of at least a sample, and an update after it.
std::vector<CommonStep> common_steps(const Run& run) {
  std::map<std::int64_t, CommonStep> steps;
  for (const auto* rank : run.ranks)
    for (auto& [number, of_rank] : loss_steps(*rank)) {
      if (of_rank.losses != 1 || of_rank.loss->count == 0 || !of_rank.updated) continue;
      steps[number].step = number;
      steps[number].ranks.push_back(std::move(of_rank));
    }
  std::vector<CommonStep> result;
  for (auto& [number, step] : steps)
    if (step.ranks.size() == run.ranks.size()) result.push_back(std::move(step));
  return result;
}

bool has(const std::string& op, const char* part) {
  return op.find(part) != std::string::npos;
}

// Of the ranks' own mean losses.
double mean_of_own(const CommonStep& step) {
  double sum = 0;
  for (const auto& rank : step.ranks) sum += rank.own_mean();
  return sum / static_cast<double>(step.ranks.size());
}

// How far the ranks' own losses lie from their mean, at most.
double spread_of_own(const CommonStep& step) {
  const double mean = mean_of_own(step);
  double spread = 0;
  for (const auto& rank : step.ranks) spread = std::max(spread, std::abs(rank.own_mean() - mean));
  return spread;
}

// ---- gather-loses-graph ----

// Whether the gradients for what was gathered went back to the ranks it came from: by an operation
// that hands each rank its part, or by a sum of all parts.
bool gradients_went_back(const LossStep& step, std::int64_t gathered) {
  return std::any_of(step.after.begin(), step.after.end(), [&](const trace::Collective* call) {
    if (has(call->op, "alltoall") || has(call->op, "scatter") || has(call->op, "recv")) return true;
    return has(call->op, "allreduce") && elements_of(*call) == gathered;
  });
}

// Backward starts from the mean of all ranks' losses, which were gathered one for each sample; each rank's own losses
// are all that it has gradients of.
bool gathered_losses_in_vain(const CommonStep& step) {
  const double mean = mean_of_own(step), spread = spread_of_own(step);
  if (spread <= 1e-5 * std::abs(mean)) return false;
  return step.on_all([&](const LossStep& rank) {
    const auto gathers = [&](const auto* call) {
      return has(call->op, "allgather") && elements_of(*call) == rank.samples;
    };
    const auto gathered = rank.samples * static_cast<std::int64_t>(step.ranks.size());
    return rank.samples > 1 && rank.loss->count == rank.samples &&
           std::any_of(rank.before.begin(), rank.before.end(), gathers) &&
           std::abs(rank.loss->backward_value - mean) <= 0.01 * spread + 1e-6 * std::abs(mean) &&
           !gradients_went_back(rank, gathered);
  });
}

bool gathered_in_vain(const CommonStep& step) {
  std::int64_t samples = 0;
  for (const auto& rank : step.ranks) samples += rank.samples;
  const auto world_size = static_cast<std::int64_t>(step.ranks.size());
  const double first = step.ranks.front().loss->sum;
  return step.on_all([&](const LossStep& rank) {
    std::int64_t gathered = 0;  // the largest, from all ranks
    for (const auto* call : rank.before)
      if (has(call->op, "allgather"))
        gathered = std::max(gathered, world_size * elements_of(*call));
    const bool of_all = rank.loss->count == samples && rank.samples < samples;
    return gathered > 0 && of_all && are_close(rank.loss->sum, first, 1e-4) &&
           are_close(rank.loss->backward_value, rank.own_mean(), 0.05) &&
           !gradients_went_back(rank, gathered);
  });
}

// ---- loss-all-reduced-in-place ----

bool sums_a_scalar(const trace::Collective* call) {
  return has(call->op, "allreduce") && call->reduce_op == "sum" && elements_of(*call) == 1;
}

// Where all ranks' losses are equal but for rounding, each is their mean.
bool losses_differ(const CommonStep& step) {
  return spread_of_own(step) > 1e-5 * std::abs(mean_of_own(step));
}

bool starts_from_the_mean(const CommonStep& step) {
  const double mean = mean_of_own(step);
  const double near = 0.01 * spread_of_own(step) + 1e-6 * std::abs(mean);
  return step.on_all([&](const LossStep& rank) {
    return std::any_of(rank.before.begin(), rank.before.end(), sums_a_scalar) &&
           std::none_of(rank.after.begin(), rank.after.end(), sums_a_scalar) &&  // its backward's
           std::abs(rank.loss->backward_value - mean) <= near;
  });
}

// How many times the mean of the ranks' own gradients the reduced one is, in the first step that tells.
std::optional<double> times_the_mean(const Run& run) {
  for (const auto& step : gradient_steps(run))
    if (const auto times = reduction_scale(step, 0.01)) return times;
  return std::nullopt;
}

// What one of the two looks for: in every step that can tell.
struct Rule {
  bool (*can_tell)(const CommonStep&);
  const char* none_can;
  bool (*is_wrong)(const CommonStep&);
  std::string (*describe)(const CommonStep&);
};

Verdict judge(const Run& run, const std::vector<CommonStep>& steps, const Rule& rule) {
  const CommonStep* first = nullptr;
  bool has_calls = false, all_wrong = true;
  for (const auto& step : steps) {
    if (!step.on_all([](const LossStep& rank) { return !rank.after.empty(); })) continue;
    has_calls = true;
    if (!rule.can_tell(step)) continue;
    if (first == nullptr) first = &step;
    all_wrong = all_wrong && rule.is_wrong(step);
  }
  if (!has_calls)
    return not_triggered(
        "no step has one loss of every rank, a collective after it, and an update");
  if (first == nullptr) return not_triggered(rule.none_can);
  if (!all_wrong) return clean();
  return found({.ranks = run.numbers, .step = first->step, .evidence = rule.describe(*first)});
}

// The loss is computed from a sum over the ranks that autograd does not see.
std::optional<Finding> sum_without_graph(const Run& run) {
  if (run.kinds.count(trace::GraphCut::kName) == 0) return std::nullopt;
  for (const auto& [step, cuts] : by_step<trace::GraphCut>(run))
    return Finding{
        .ranks = run.numbers,
        .step = step,
        .evidence = fmt::format(
            "the loss is computed from {} that an all-reduce summed over the ranks, which autograd "
            "does not see: each rank has the gradient of its own part, and the mean of them is "
            "1/{} of the right one. torch.distributed.nn.functional.all_reduce has a gradient",
            plural(cuts.front()->elements, "number"), run.world_size)};
  return std::nullopt;
}

Verdict gather_loses_graph(const Run& run) {
  if (auto sum = sum_without_graph(run)) return found(std::move(*sum));
  const auto any_step = [](const CommonStep&) { return true; };
  const auto describe = [](const CommonStep& step) {
    const auto& rank = step.ranks.front();
    std::int64_t samples = 0;
    for (const auto& each : step.ranks) samples += each.samples;
    return fmt::format(
        "every rank's loss is of all ranks' {} samples, {} of them its own, and no gradient for "
        "the gathered ones goes back to the ranks they came from: averaged, the gradient is 1/{} "
        "of the loss's",
        samples, rank.samples, step.ranks.size());
  };
  const auto steps = common_steps(run);
  const auto verdict = judge(run, steps, {any_step, "", gathered_in_vain, describe});
  if (verdict.state != State::clean) return verdict;
  auto of_losses = judge(run, steps, {any_step, "", gathered_losses_in_vain, describe});
  if (of_losses.state != State::found) return verdict;
  // Gradients that are summed, or that nobody has recorded, may make up for it.
  const auto times = times_the_mean(run);
  if (times && *times > 1.5) return verdict;
  if (!times) of_losses.findings.front().severity = Severity::advice;
  return of_losses;
}

Verdict loss_all_reduced_in_place(const Run& run) {
  const auto describe = [](const CommonStep& step) {
    const auto& rank = step.ranks.front();
    return fmt::format(
        "backward starts from {:f}, the mean of all ranks' losses (the first rank's own is {:f}), "
        "and no sum over the ranks in backward makes up for the division",
        rank.loss->backward_value, rank.own_mean());
  };
  return judge(run, common_steps(run),
               {losses_differ, "the ranks' losses are equal: each is their mean",
                starts_from_the_mean, describe});
}

}  // namespace
}  // namespace lockstep::diagnose
