#include <lockstep/diagnose/averaging.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/pairing.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace lockstep::diagnose {

namespace {

// Of a tensor that is missing or not finite, a number that no norm is.
double norm_at(const std::vector<trace::Summary>& values, int tensor) {
  const auto at = static_cast<std::size_t>(tensor);
  if (at >= values.size()) return -2;
  return std::isfinite(values[at].norm) ? values[at].norm : -1;
}

// From each of these steps on, whether all ranks that have recorded a model by then have parameters of the same shapes.
using Layouts = std::map<std::int64_t, bool>;
Layouts find_layouts(const Run& run) {
  std::map<std::int64_t, std::map<std::size_t, const trace::Model*>> begun;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : run.ranks[r]->latest<trace::Model>()) begun[at.step][r] = at.event;
  Layouts layouts;
  std::map<std::size_t, const trace::Model*> models;
  for (const auto& [step, of_ranks] : begun) {
    for (const auto& [rank, model] : of_ranks) models[rank] = model;
    layouts[step] = std::ranges::all_of(models, [&](const auto& of_rank) {
      return of_rank.second->shapes == models.begin()->second->shapes;
    });
  }
  return layouts;
}

ReplicasByStep find_replicas(const Run& run) {
  ReplicasByStep steps;
  for (const auto& [step, ranks] : by_step<trace::Parameters>(run)) {
    const auto count = ranks.front()->values.size();
    const bool of_one_model = std::all_of(
        ranks.begin(), ranks.end(), [&](const auto* rank) { return rank->values.size() == count; });
    if (of_one_model && have_one_layout(run, step)) steps[step] = replicas_of(ranks);
  }
  return steps;
}

}  // namespace

bool have_one_layout(const Run& run, std::int64_t step) {
  const auto& layouts = run.once(find_layouts);
  const auto next = layouts.upper_bound(step);
  return next == layouts.begin() || std::prev(next)->second;
}

const ReplicasByStep& replicas_by_step(const Run& run) {
  return run.once(find_replicas);
}

Spread spread_of(const Replicas& replicas) {
  Spread spread;
  const auto first = vector_of(*replicas.front());
  for (const auto* replica : replicas) {
    const auto mine = vector_of(*replica);
    if (mine) ++spread.finite;
    if (first && mine) spread.distance = std::max(spread.distance, distance(*mine, *first));
  }
  return spread;
}

Groups groups_of_equal(const Replicas& replicas) {
  Groups groups{std::vector<std::size_t>(replicas.size(), 0), -1};
  for (std::size_t r = 0; r < replicas.size(); ++r) {
    const int tensor = first_difference(*replicas[r], *replicas.front());
    if (tensor >= 0) groups.of[r] = r;
    if (tensor >= 0 && (groups.tensor < 0 || tensor < groups.tensor)) groups.tensor = tensor;
  }
  if (groups.tensor < 0) return groups;
  // Those that may be equal have nearly the same norm of that tensor: each is compared with the first of
  // such a group, or all pairs would be where all differ.
  constexpr double kNear = 2 * kReplicaTolerance;
  std::multimap<double, std::size_t> firsts;
  for (std::size_t r = 0; r < replicas.size(); ++r) {
    if (r > 0 && groups.of[r] == 0) continue;
    const double norm = norm_at(*replicas[r], groups.tensor);
    const double margin = kNear * std::abs(norm);
    const auto end = firsts.upper_bound(norm + margin);
    for (auto first = firsts.lower_bound(norm - margin); first != end; ++first)
      if (first->second < groups.of[r] &&
          first_difference(*replicas[r], *replicas[first->second]) < 0)
        groups.of[r] = first->second;
    if (groups.of[r] == r) firsts.emplace(norm, r);
  }
  return groups;
}

namespace {

std::vector<Vector> means_of(const GradientStep& step) {
  std::vector<Vector> result{mean(step.local)};
  const auto [least, most] = std::minmax_element(step.samples.begin(), step.samples.end());
  if (*least > 0 && *least != *most) result.push_back(mean(step.local, step.samples));
  return result;
}

}  // namespace

bool is_unreduced(const GradientStep& step) {
  bool whole = true;  // not clipped, or scaled
  double apart = 0, turned = 0;
  for (std::size_t i = 0; i < step.local.size(); ++i) {
    if (i >= step.reduced.size() || angle(step.reduced[i], step.local[i]) > kRounding) return false;
    whole = whole && distance(step.reduced[i], step.local[i]) <= kRounding;
    apart = std::max(apart, distance(step.local[i], step.local.front()));
    turned = std::max(turned, angle(step.local[i], step.local.front()));
  }
  return (whole ? apart : turned) > kRounding;
}

namespace {

// A step counts when what is there is whole: every rank's gradients, all of one length.
bool is_whole(const GradientStep& step, const Run& run) {
  if (step.local.empty() || step.reduced.empty()) return false;
  if (!run.devices &&
      (step.local.size() != run.ranks.size() || step.reduced.size() != run.ranks.size()))
    return false;
  const auto size = step.local.front().size();
  const auto fits = [&](const Vector& v) { return v.size() == size; };
  return std::all_of(step.local.begin(), step.local.end(), fits) &&
         std::all_of(step.reduced.begin(), step.reduced.end(), fits);
}

// A parameter that no rank's backward reached holds a gradient of another step, or of an outer optimizer.
void leave_out_what_no_backward_gave(GradientStep& step) {
  for (std::size_t i = 0; i < step.local.front().size(); ++i)
    if (std::ranges::all_of(step.local, [i](const Vector& local) { return local[i] == 0; }))
      for (auto& reduced : step.reduced) reduced[i] = 0;
}

std::vector<GradientStep> find_gradient_steps(const Run& run) {
  if (!run.complete) return {};
  std::map<std::int64_t, GradientStep> steps;
  std::map<std::int64_t, bool> broken;  // a rank's gradients are there but cannot be used
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    for (const auto& [step, event] : by_step<trace::LocalGradients>(*run.ranks[r])) {
      auto& of_step = steps[step];
      of_step.step = step;
      const auto vector = vector_of(event->values);
      broken[step] |= !vector;
      if (!vector) continue;
      of_step.local.push_back(*vector);
      of_step.samples.push_back(static_cast<double>(event->samples));
    }
    // Of devices, only the first holds what the optimizer goes by.
    if (run.devices && r > 0) continue;
    for (const auto& [step, event] : by_step<trace::ReducedGradients>(*run.ranks[r]))
      if (const auto vector = vector_of(event->values)) steps[step].reduced.push_back(*vector);
  }
  std::vector<GradientStep> whole;
  const auto& left_out = update_skipped(run);
  if (left_out) steps.erase(steps.lower_bound(left_out->step), steps.end());
  for (auto& [number, step] : steps)
    if (!broken[number] && is_whole(step, run) && have_one_layout(run, number)) {
      leave_out_what_no_backward_gave(step);
      step.means = means_of(step);
      whole.push_back(std::move(step));
    }
  return whole;
}

}  // namespace

const std::vector<GradientStep>& gradient_steps(const Run& run) {
  return run.once(find_gradient_steps);
}

std::optional<double> reduction_scale(const GradientStep& step, double tolerance) {
  std::optional<double> scale;
  for (const auto& reduced : step.reduced) {
    std::optional<double> of_rank;
    for (const auto& mean : step.means) {
      const double square = dot(mean, mean);
      if (square == 0 || of_rank) continue;
      const double s = dot(mean, reduced) / square;
      if (distance(times(s, mean), reduced) <= tolerance) of_rank = s;
    }
    if (!of_rank || (scale && std::abs(*of_rank - *scale) > 0.01 * std::abs(*scale)))
      return std::nullopt;
    scale = of_rank;
  }
  return scale;
}

std::optional<double> loss_scale(const Run& run, std::int64_t step) {
  double backward = 0, sum = 0, count = 0;
  for (const auto* rank : run.ranks) {
    bool any = false;
    for (const auto& at : rank->all<trace::Loss>()) {
      if (at.step != step) continue;
      any = true;
      backward += at.event->backward_value;
      sum += at.event->sum;
      count += static_cast<double>(at.event->count);
    }
    if (!any) return std::nullopt;
  }
  const double scale = (backward / static_cast<double>(run.ranks.size())) / (sum / count);
  if (!std::isfinite(scale)) return std::nullopt;
  return scale;
}

namespace {

double samples_of_a_rank(const Run& run, std::int64_t step) {
  double count = 0;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<trace::Loss>())
      if (at.step == step) count += static_cast<double>(at.event->count);
  return count / static_cast<double>(run.ranks.size());
}

using Clips = std::vector<const trace::Clip*>;  // every rank's, of a step
using ClipsByStep = std::map<std::int64_t, Clips>;

const ClipsByStep& all_clips(const Run& run) {
  return run.once(
      +[](const Run& of) { return of.devices ? ClipsByStep{} : by_step<trace::Clip>(of); });
}

// Of a step that was clipped, the gradients that the clipping met.
GradientStep before_clipping(GradientStep step, const Clips& clips) {
  for (std::size_t r = 0; r < step.reduced.size(); ++r)
    if (auto met = vector_of(clips[r]->values); met && met->size() == step.reduced[r].size())
      step.reduced[r] = *std::move(met);
  return step;
}

std::vector<Scales> find_scales(const Run& run) {
  std::vector<Scales> result;
  for (const auto& step : gradient_steps(run)) {
    const auto reduction = unclipped_scale(run, step);
    const auto loss = loss_scale(run, step.step);
    if (!reduction || !loss) continue;
    result.push_back({step.step, *reduction, *loss, samples_of_a_rank(run, step.step)});
    result.back().hidden = is_hidden_by_clipping(run, step.step, *reduction * *loss);
  }
  return result;
}

}  // namespace

std::optional<double> unclipped_scale(const Run& run, const GradientStep& step) {
  const auto& clips = all_clips(run);
  const auto found = clips.find(step.step);
  return reduction_scale(found == clips.end() ? step : before_clipping(step, found->second),
                         kRounding);
}

bool is_hidden_by_clipping(const Run& run, std::int64_t step, double times) {
  const auto& clips = all_clips(run);
  const auto found = clips.find(step);
  if (found == clips.end()) return false;
  const auto& clip = *found->second.front();
  return std::min(clip.norm, clip.norm / times) >= clip.max_norm;
}

const std::vector<Scales>& scales(const Run& run) {
  return run.once(find_scales);
}

bool has_ddp(const Run& run) {
  return std::all_of(run.ranks.begin(), run.ranks.end(), [](const auto* rank) {
    const auto engines = rank->template all<trace::Engine>();
    return std::any_of(engines.begin(), engines.end(), [](const auto& at) {
      return at.event->kind == "distributed_data_parallel";
    });
  });
}

namespace {

// In some step the ranks reduce gradients of their own to one.
bool have_one_gradient(const Run& run) {
  const auto& steps = gradient_steps(run);
  return std::any_of(steps.begin(), steps.end(), [](const GradientStep& step) {
    return !all_near(step.local, step.local.front(), kRounding) &&
           all_near(step.reduced, step.reduced.front(), kRounding);
  });
}

// The ranks begin with equal parameters, and later as many numbers as those are go between all of them.
bool average_models(const Run& run) {
  const std::vector<trace::Summary>* equal = nullptr;
  return std::all_of(run.ranks.begin(), run.ranks.end(), [&](const auto* rank) {
    const auto models = rank->template latest<trace::Model>();
    const auto parameters = rank->template latest<trace::Parameters>();
    if (models.empty() || parameters.empty() || parameters.front().step >= 0) return false;
    const auto& start = parameters.front().event->values;
    if (equal == nullptr) equal = &start;
    std::int64_t reduced = 0;
    for (const auto& at : rank->template latest<trace::Collective>())
      if (at.step >= 0 && at.event->op.find("reduce") != std::string::npos)
        reduced += elements_of(*at.event);
    return reduced >= elements_of(*models.back().event) && are_identical(start, *equal);
  });
}

}  // namespace

bool train_one_model(const Run& run) {
  return has_ddp(run) || run.once(have_one_gradient) || run.once(average_models) ||
         run.once(are_averaged) || run.once(send_their_parts);
}

bool declares_mean_loss(const Run& run) {
  return std::any_of(run.ranks.begin(), run.ranks.end(), [](const auto* rank) {
    const auto intents = rank->template all<trace::Intent>();
    return !intents.empty() && intents.back().event->loss_reduction == "mean";
  });
}

bool is_near(double value, double target, double tolerance) {
  return std::abs(value - target) <= tolerance * target;
}

}  // namespace lockstep::diagnose
