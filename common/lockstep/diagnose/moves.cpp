#include <lockstep/diagnose/format.h>
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
  Replicas gradients;         // of every rank, as its optimizer got them
  std::vector<double> rates;  // of the first rank's parameter groups
};

// Their updates are rounded by more than can be told from another rule.
bool has_narrow_parameters(const Run& run) {
  const auto models = run.ranks.front()->all<trace::Model>();
  return std::any_of(models.begin(), models.end(), [](const auto& at) {
    return std::any_of(at.event->dtypes.begin(), at.event->dtypes.end(), is_narrow);
  });
}

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
  if (has_narrow_parameters(run)) return {};
  const auto& replicas = replicas_by_step(run);
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
              .gradients = replicas_of(reduced->second),
              .rates = update->second.front()->lr};
    if (have_sketches(step)) steps.push_back(std::move(step));
  }
  return steps;
}

// How a tensor moved, against what plain SGD makes of the gradient. A small weight decay lies between `as_sgd` and
// `otherwise`, and is untold.
enum class Move { untold, as_sgd, not_at_all, twice, otherwise };

// By a gradient, which is given as its sketch. Untold where the gradient is none, or so small that the rounding of the
// sum hides it, and with a rate of zero.
Move move_of(const Step& step, std::size_t tensor, const Vector& gradient) {
  constexpr double kSame = 1e-3, kOther = 0.1;  // relative to what SGD moves it by
  const auto& before = (*step.before)[tensor];
  const double rounding = 2e-6 * std::max(before.norm, (*step.after)[tensor].norm);
  const auto moved = minus((*step.after)[tensor].sketch, before.sketch);
  auto closest = Move::otherwise;
  for (const double rate : step.rates) {
    const auto expected = times(-rate, gradient);
    const double size = norm(expected);
    if (size < 10 * rounding) return Move::untold;
    const double off = norm(minus(moved, expected));
    if (off <= kSame * size + rounding) return Move::as_sgd;
    if (off < kOther * size) closest = Move::untold;
    if (norm(moved) <= rounding) closest = Move::not_at_all;
    if (norm(minus(moved, times(2, expected))) <= kSame * size + rounding) closest = Move::twice;
  }
  return closest;
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
    if (groups_of_equal(step.gradients).tensor >= 0) continue;
    for (std::size_t t = 0; t < step.before->size(); ++t)
      moves[step.step].push_back(move_of(step, t, (*step.gradients.front())[t].sketch));
  }
  return moves;
}

struct Count {
  int as_sgd = 0, odd = 0;
};

bool is_odd(Move move) {
  return move == Move::not_at_all || move == Move::twice || move == Move::otherwise;
}

std::vector<Count> count_by_tensor(const std::map<std::int64_t, std::vector<Move>>& moves) {
  std::vector<Count> counts(moves.begin()->second.size());
  for (const auto& [step, of_tensors] : moves)
    for (std::size_t t = 0; t < counts.size(); ++t) {
      counts[t].as_sgd += of_tensors[t] == Move::as_sgd ? 1 : 0;
      counts[t].odd += is_odd(of_tensors[t]) ? 1 : 0;
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
  return {.severity = Severity::advice,
          .ranks = owner.empty() ? run.numbers : std::vector<int>(ranks.begin(), ranks.end()),
          .step = step,
          .evidence = fmt::format(
              "the gradient times the learning rate is what other parameters move by, and {}{} by "
              "something else{}",
              tensor_text("parameter", tensors.front(), names),
              tensors.size() > 1 ? fmt::format(" (and {} more)", tensors.size() - 1) : "", when)};
}

// In one update a part is left out, or updated twice, and in all others it moves as the rest does. To leave one out is
// also a way to train (two optimizers in turn), but not of what a rank updates for all.
std::optional<Finding> once(const Run& run, const std::map<std::int64_t, std::vector<Move>>& moves,
                            const std::vector<Count>& counts, const std::vector<int>& owner) {
  for (const auto& [step, of_tensors] : moves) {
    if (std::find(of_tensors.begin(), of_tensors.end(), Move::as_sgd) == of_tensors.end()) continue;
    std::vector<std::size_t> odd;
    for (std::size_t t = 0; t < of_tensors.size(); ++t) {
      const bool told =
          of_tensors[t] == Move::twice || (of_tensors[t] == Move::not_at_all && !owner.empty());
      if (told && counts[t].as_sgd >= 2 && counts[t].odd == 1) odd.push_back(t);
    }
    if (!odd.empty()) return finding_of(run, odd, owner, step, " in this update alone");
  }
  return std::nullopt;
}

// What one rank updates for all moves otherwise, always, and what others update as SGD. Not where the parts are of
// different kinds (matrices here, biases there), which may well have rules of their own.
std::optional<Finding> of_one_owner(const Run& run, std::int64_t first_step,
                                    const std::vector<Count>& counts,
                                    const std::vector<int>& owner) {
  const auto models = run.ranks.front()->all<trace::Model>();
  if (owner.empty() || models.empty()) return std::nullopt;
  std::map<bool, std::set<int>> ranks;          // whose parts move otherwise, and as SGD
  std::map<bool, std::set<std::size_t>> kinds;  // how many dimensions those have
  std::vector<std::size_t> odd;
  for (std::size_t t = 0; t < counts.size(); ++t) {
    if (counts[t].odd > 0 && counts[t].as_sgd > 0) return std::nullopt;
    if (counts[t].odd == 0 && counts[t].as_sgd == 0) continue;
    const bool is_other = counts[t].odd > 0;
    if (is_other) odd.push_back(t);
    ranks[is_other].insert(owner[t]);
    kinds[is_other].insert(models.back().event->shapes[t].size());
  }
  const auto meet = [](const auto& a, const auto& b) {
    return std::any_of(a.begin(), a.end(), [&](const auto& each) { return b.count(each) > 0; });
  };
  if (odd.empty() || meet(ranks[true], ranks[false]) || !meet(kinds[true], kinds[false]))
    return std::nullopt;
  return finding_of(
      run, odd, owner, first_step,
      fmt::format(": {} that part",
                  ranks_text({ranks[true].begin(), ranks[true].end()}, "updates", "update")));
}

}  // namespace

std::optional<Finding> part_that_moves_otherwise(const Run& run) {
  const auto steps = steps_of(run);
  const auto moves = moves_by_step(steps);
  if (moves.size() < 3) return std::nullopt;  // too few to tell an update from the others
  const auto counts = count_by_tensor(moves);
  const auto owner = owners(run, steps);
  if (auto finding = once(run, moves, counts, owner)) return finding;
  return of_one_owner(run, moves.begin()->first, counts, owner);
}

bool moves_by_one_rank_each(const Run& run) {
  const auto steps = steps_of(run);
  for (const auto& step : steps) {
    if (groups_of_equal(step.gradients).tensor < 0) return false;
    bool any = false;
    for (std::size_t t = 0; t < step.before->size(); ++t) {
      std::vector<Move> by_own;
      for (const auto* gradients : step.gradients)
        by_own.push_back(move_of(step, t, (*gradients)[t].sketch));
      if (std::find(by_own.begin(), by_own.end(), Move::untold) != by_own.end()) continue;
      if (std::find(by_own.begin(), by_own.end(), Move::as_sgd) == by_own.end()) return false;
      any = true;
    }
    if (!any) return false;
  }
  return steps.size() >= 2;
}

std::optional<double> sgd_factor(const Run& run) {
  for (const auto& step : steps_of(run)) {
    if (step.rates.size() != 1) continue;
    Vector moved, expected;
    for (std::size_t t = 0; t < step.before->size(); ++t) {
      const auto by = times(-step.rates.front(), (*step.gradients.front())[t].sketch);
      const auto of_tensor = minus((*step.after)[t].sketch, (*step.before)[t].sketch);
      expected.insert(expected.end(), by.begin(), by.end());
      moved.insert(moved.end(), of_tensor.begin(), of_tensor.end());
    }
    if (norm(expected) == 0) continue;
    const double factor = dot(moved, expected) / dot(expected, expected);
    if (distance(moved, times(factor, expected)) > 0.01) return std::nullopt;
    return factor;
  }
  return std::nullopt;
}

}  // namespace lockstep::diagnose
