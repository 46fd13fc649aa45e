#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/moves.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace lockstep::diagnose {
namespace {

using Tensor = trace::Summary;

// One update of replicas that were equal before it and after it.
struct Step {
  std::int64_t step = 0;
  const std::vector<Tensor>* before = nullptr;
  const std::vector<Tensor>* after = nullptr;
  std::vector<const std::vector<Tensor>*> gradients;  // of every rank, as its optimizer got them
  std::vector<double> rates;                          // of the first rank's parameter groups
};

bool have_sketches(const Step& step) {
  const auto are_whole = [&](const std::vector<Tensor>& values) {
    return values.size() == step.before->size() &&
           std::all_of(values.begin(), values.end(), [](const Tensor& tensor) {
             return tensor.sketch.size() == trace::kSketch && std::isfinite(tensor.norm);
           });
  };
  return are_whole(*step.before) && are_whole(*step.after) &&
         std::all_of(step.gradients.begin(), step.gradients.end(),
                     [&](const auto* gradients) { return are_whole(*gradients); });
}

std::vector<Step> steps_of(const Run& run) {
  const auto replicas = replicas_by_step(run);
  const auto gradients = by_step<trace::ReducedGradients>(run);
  const auto updates = by_step<trace::Update>(run);
  std::vector<Step> steps;
  for (const auto& [number, after] : replicas) {
    const auto before = replicas.find(number - 1);
    const auto reduced = gradients.find(number);
    const auto update = updates.find(number);
    if (before == replicas.end() || reduced == gradients.end() || update == updates.end()) continue;
    if (groups_of_equal(before->second).tensor >= 0 || groups_of_equal(after).tensor >= 0) continue;
    Step step{.step = number,
              .before = before->second.front(),
              .after = after.front(),
              .gradients = {},
              .rates = update->second.front()->lr};
    for (const auto* rank : reduced->second) step.gradients.push_back(&rank->values);
    if (have_sketches(step)) steps.push_back(std::move(step));
  }
  return steps;
}

enum class Move { untold, as_sgd, otherwise };

// Of a tensor by a gradient, which are given as sketches. Untold where the gradient is none, or so small that the
// rounding of the sum hides it.
Move move_of(const Step& step, std::size_t tensor, const Vector& gradient) {
  const auto& before = (*step.before)[tensor];
  const double rounding = 2e-6 * std::max(before.norm, (*step.after)[tensor].norm);
  const auto moved = minus((*step.after)[tensor].sketch, before.sketch);
  bool told = false;
  for (const double rate : step.rates) {
    double square = 0, size = 0;
    for (std::size_t i = 0; i < moved.size(); ++i) {
      const double expected = -rate * gradient[i];
      square += (moved[i] - expected) * (moved[i] - expected);
      size += expected * expected;
    }
    if (std::sqrt(size) < 10 * rounding) continue;
    if (std::sqrt(square) <= 1e-3 * std::sqrt(size) + rounding) return Move::as_sgd;
    told = true;
  }
  return told ? Move::otherwise : Move::untold;
}

bool all_like_first(const std::vector<const std::vector<Tensor>*>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const auto* rank) { return first_difference(*rank, *ranks.front()) < 0; });
}

// Of each tensor the rank that broadcasts it in every one of these updates; empty where they are not broadcast one
// by one, in order.
std::vector<int> owners(const Run& run, const std::vector<Step>& steps) {
  const auto models = run.ranks.front()->all<trace::Model>();
  if (models.empty()) return {};
  const auto& shapes = models.back().event->shapes;
  std::set<std::vector<int>> seen;
  for (const auto& step : steps) {
    std::vector<int> roots;
    for (const auto& at : run.ranks.front()->all<trace::Collective>()) {
      if (at.step != step.step || at.event->op != "broadcast") continue;
      if (roots.size() < shapes.size() &&
          elements_of(*at.event) == elements_of(shapes[roots.size()]))
        roots.push_back(static_cast<int>(at.event->root));
    }
    seen.insert(std::move(roots));
  }
  if (seen.size() != 1 || seen.begin()->size() != shapes.size()) return {};
  return *seen.begin();
}

// Of every step and tensor; in steps in which the ranks go by one gradient.
std::map<std::int64_t, std::vector<Move>> moves_by_step(const std::vector<Step>& steps) {
  std::map<std::int64_t, std::vector<Move>> moves;
  for (const auto& step : steps) {
    if (!all_like_first(step.gradients)) continue;
    for (std::size_t t = 0; t < step.before->size(); ++t)
      moves[step.step].push_back(move_of(step, t, (*step.gradients.front())[t].sketch));
  }
  return moves;
}

struct Count {
  int as_sgd = 0, otherwise = 0;
};

std::vector<Count> count_by_tensor(const std::map<std::int64_t, std::vector<Move>>& moves) {
  std::vector<Count> counts(moves.begin()->second.size());
  for (const auto& [step, of_tensors] : moves)
    for (std::size_t t = 0; t < counts.size(); ++t) {
      counts[t].as_sgd += of_tensors[t] == Move::as_sgd ? 1 : 0;
      counts[t].otherwise += of_tensors[t] == Move::otherwise ? 1 : 0;
    }
  return counts;
}

Finding finding_of(const Run& run, const std::vector<std::size_t>& tensors,
                   const std::vector<int>& owner, std::int64_t step, const std::string& when) {
  std::set<int> ranks;
  for (const auto tensor : tensors)
    if (!owner.empty()) ranks.insert(owner[tensor]);
  const auto models = run.ranks.front()->all<trace::Model>();
  const auto names = models.empty() ? std::vector<std::string>{} : models.back().event->names;
  return {.pitfall = "update-differs",
          .severity = Severity::advice,
          .ranks = owner.empty() ? run.numbers : std::vector<int>(ranks.begin(), ranks.end()),
          .step = step,
          .evidence =
              "the gradient times the learning rate is what other parameters move by, and " +
              tensor_text("parameter", tensors.front(), names) +
              (tensors.size() > 1 ? " (and " + std::to_string(tensors.size() - 1) + " more)" : "") +
              " by something else" + when};
}

}  // namespace

std::optional<Finding> part_that_moves_otherwise(const Run& run) {
  const auto steps = steps_of(run);
  const auto moves = moves_by_step(steps);
  if (moves.size() < 3) return std::nullopt;  // too few to tell an update from the others
  const auto counts = count_by_tensor(moves);
  const auto owner = owners(run, steps);
  for (const auto& [step, of_tensors] : moves) {
    if (std::find(of_tensors.begin(), of_tensors.end(), Move::as_sgd) == of_tensors.end()) continue;
    std::vector<std::size_t> odd;
    for (std::size_t t = 0; t < of_tensors.size(); ++t)
      if (of_tensors[t] == Move::otherwise && counts[t].as_sgd >= 2) odd.push_back(t);
    if (!odd.empty()) return finding_of(run, odd, owner, step, " in this update alone");
  }
  if (owner.empty()) return std::nullopt;
  std::map<bool, std::set<int>> ranks;  // whose parts move otherwise, and as SGD
  std::vector<std::size_t> odd;
  for (std::size_t t = 0; t < counts.size(); ++t) {
    if (counts[t].otherwise > 0) odd.push_back(t);
    if (counts[t].otherwise + counts[t].as_sgd > 0)
      ranks[counts[t].otherwise > counts[t].as_sgd].insert(owner[t]);
  }
  const bool apart = std::none_of(ranks[true].begin(), ranks[true].end(),
                                  [&](int rank) { return ranks[false].count(rank) > 0; });
  if (odd.empty() || !apart || ranks[false].empty()) return std::nullopt;
  return finding_of(run, odd, owner, moves.begin()->first,
                    ": " +
                        ranks_text({ranks[true].begin(), ranks[true].end()}, "updates", "update") +
                        " that part");
}

bool moves_by_one_rank_each(const Run& run) {
  const auto steps = steps_of(run);
  for (const auto& step : steps) {
    if (all_like_first(step.gradients)) return false;
    bool any = false;
    for (std::size_t t = 0; t < step.before->size(); ++t) {
      std::vector<Vector> own;
      for (const auto* gradients : step.gradients) own.push_back((*gradients)[t].sketch);
      if (move_of(step, t, mean(own, std::vector<double>(own.size(), 1.0))) == Move::as_sgd)
        return false;
      const auto by_own = [&](const Vector& gradient) {
        return move_of(step, t, gradient) == Move::as_sgd;
      };
      any = any || std::any_of(own.begin(), own.end(), by_own);
    }
    if (!any) return false;
  }
  return steps.size() >= 2;
}

}  // namespace lockstep::diagnose
