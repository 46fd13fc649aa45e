// Pitfalls of synchronising a layer over the ranks: what is averaged, when buffers are copied, and who
// reduces the layer's gradients.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>

namespace lockstep::diagnose {
namespace {
Verdict unequal_counts_in_sync(const Run& run);
Verdict buffer_sync_inside_backward(const Run& run);
Verdict sync_bn_after_wrapping(const Run& run);
}  // namespace

std::vector<Detector> batch_sync_detectors() {
  return {
      // Needs means that every rank took part in, over unequal counts. Rule: all ranks went on with
      // the plain mean of their means, which is not the mean weighted by their counts. Not fooled
      // by equal counts, nor by ranks that go on with their own.
      {.slug = "unequal-counts-in-sync",
       .equation = Equation::loss_weights,
       .needs = {"average"},
       .detect = unequal_counts_in_sync},
      // Rule: on a rank, a broadcast came after a forward in training mode and before its backward,
      // and that step's backward never ended. Not fooled by two forwards without a broadcast
      // between them, nor by broadcasts that did no harm before.
      {.slug = "buffer-sync-inside-backward",
       .equation = Equation::buffers,
       .needs = {"buffers", "forward", "collective"},
       .complete = false,
       .stage = Stage::ranks_differ,
       .detect = buffer_sync_inside_backward},
      // Rule: the ranks go by their own gradients for parameters of C values, where 2C + 1 numbers
      // are all-gathered (SyncBatchNorm's statistics), and by the mean for others. Not fooled by a
      // late conversion that keeps the tensors.
      {.slug = "sync-bn-after-wrapping",
       .equation = Equation::mean_gradient,
       .line = "wrapping",
       .needs = {"engine", "model", "local_gradients", "reduced_gradients", "collective"},
       .stage = Stage::ranks_differ,
       .accounts_for = {"update-differs", "replicas-diverged", "gradient-not-the-mean"},
       .detect = sync_bn_after_wrapping},
  };
}

namespace {
// The means that all ranks took part in: the k-th of a step on each rank belong together.
struct JoinedMean {
  std::int64_t step = 0;
  std::vector<double> counts;
  std::vector<Vector> own, used;
};

std::vector<JoinedMean> joined_means(const Run& run) {
  std::map<std::pair<std::int64_t, std::size_t>, JoinedMean> joined;
  for (const auto* rank : run.ranks) {
    std::map<std::int64_t, std::size_t> seen;  // by step
    for (const auto& at : rank->all<trace::Average>()) {
      auto& mean = joined[{at.step, seen[at.step]++}];
      const auto own = vector_of({at.event->own}), used = vector_of({at.event->used});
      if (!own || !used) continue;
      mean.step = at.step;
      mean.counts.push_back(static_cast<double>(at.event->count));
      mean.own.push_back(*own);
      mean.used.push_back(*used);
    }
  }
  std::vector<JoinedMean> whole;
  for (auto& [key, mean] : joined)
    if (mean.own.size() == run.ranks.size()) whole.push_back(std::move(mean));
  return whole;
}

Verdict unequal_counts_in_sync(const Run& run) {
  const auto means = joined_means(run);
  if (means.empty()) return not_triggered("no mean was recorded that every rank took part in");
  bool looked = false;
  for (const auto& now : means) {
    const auto plain = mean(now.own);
    const auto weighted = mean(now.own, now.counts);
    if (distance(plain, weighted) <= 10 * kRounding) continue;  // nothing tells the two apart
    looked = true;
    if (!all_near(now.used, plain, kRounding)) continue;
    const auto [least, most] = std::minmax_element(now.counts.begin(), now.counts.end());
    return found({.ranks = run.numbers,
                  .step = now.step,
                  .evidence = fmt::format(
                      "the ranks went on with the plain mean of their means, of {} to {} values "
                      "each: {} (relative) from the mean of all values",
                      number(*least), number(*most), number(distance(plain, weighted)))});
  }
  return looked ? clean() : not_applicable("every rank's mean is of as many values");
}

// A step in which a broadcast came between a forward in training mode and its backward.
struct CopiedStep {
  std::int64_t number = -1;
  bool finished = false;  // its backward ended
};

std::vector<CopiedStep> copied_steps(const trace::ParticipantTrace& rank) {
  std::vector<CopiedStep> steps;
  bool armed = false;  // a forward awaits its backward
  bool open = false;   // steps.back() is the step we are in
  for (const auto& event : rank.events) {
    const auto* call = event.as<trace::Collective>();
    if (const auto* forward = event.as<trace::Forward>()) {
      armed |= forward->training;
    } else if (call && call->op == "broadcast" && event.left_ns != 0 && call->failed == 0) {
      if (armed && !open) steps.push_back({event.step});
      open |= armed;
    } else if ((call && call->op == "allreduce") || event.is<trace::GradientArrived>()) {
      armed = false;
    } else if (event.is<trace::LocalGradients>() || event.is<trace::Update>()) {
      if (open) steps.back().finished = true;
      armed = open = false;
    }
  }
  return steps;
}

Verdict buffer_sync_inside_backward(const Run& run) {
  std::vector<int> ranks;
  std::int64_t step = -1;
  bool has_buffers = false, has_forward = false;
  for (const auto* rank : run.ranks) {
    has_buffers |= !rank->all<trace::Buffers>().empty();
    has_forward |= !rank->all<trace::Forward>().empty();
    const auto steps = copied_steps(*rank);
    // Where such a step was finished once, the copies do no harm.
    if (steps.empty() || steps.front().finished) continue;
    ranks.push_back(rank->participant.rank);
    step = step < 0 ? steps.front().number : std::min(step, steps.front().number);
  }
  if (!has_buffers || !has_forward)
    return not_triggered("no forward of a model with buffers was recorded");
  if (ranks.empty()) return clean();
  return found({.ranks = ranks,
                .step = step,
                .evidence = "a broadcast came after a forward in training mode and before its "
                            "backward, and that step never ended"});
}

Vector tensor_of(const Vector& all, std::size_t tensor) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(tensor * trace::kSketch);
  return Vector(begin, begin + trace::kSketch);
}

enum class Reduction { unknown, by_mean, none };

// What became of one tensor's gradient; unknown where the ranks' own are alike, or it is neither.
Reduction reduction_of(const GradientStep& step, std::size_t tensor) {
  std::vector<Vector> local, reduced;
  for (const auto& all : step.local) local.push_back(tensor_of(all, tensor));
  for (const auto& all : step.reduced) reduced.push_back(tensor_of(all, tensor));
  if (all_near(local, local.front(), kRounding)) return Reduction::unknown;
  if (all_near(reduced, mean(local), kRounding)) return Reduction::by_mean;
  for (std::size_t r = 0; r < local.size(); ++r)
    if (distance(local[r], reduced[r]) > kRounding) return Reduction::unknown;
  return Reduction::none;
}

// Statistics of that many channels were gathered: mean and deviation of each, and one count.
bool gathers_statistics(const trace::ParticipantTrace& rank, std::int64_t channels) {
  const auto calls = rank.all<trace::Collective>();
  return std::any_of(calls.begin(), calls.end(), [&](const auto& at) {
    return at.event->op.find("allgather") != std::string::npos &&
           at.event->sizes == std::vector<std::int64_t>{2 * channels + 1};
  });
}

Verdict sync_bn_after_wrapping(const Run& run) {
  const auto& first = *run.ranks.front();
  const auto models = first.all<trace::Model>();
  const auto& steps = gradient_steps(run);
  if (models.empty() || steps.empty() || first.all<trace::Engine>().empty())
    return not_triggered("no gradient engine's step has every rank's gradients and their shapes");
  const auto& shapes = models.back().event->shapes;
  for (const auto& step : steps) {
    std::vector<std::string> unreduced;
    bool others_reduced = false, is_statistics_layer = true;
    for (std::size_t t = 0;
         t < shapes.size() && step.local.front().size() >= (t + 1) * trace::kSketch; ++t) {
      const auto how = reduction_of(step, t);
      others_reduced |= how == Reduction::by_mean;
      if (how != Reduction::none) continue;
      unreduced.push_back(std::to_string(t));
      is_statistics_layer &= shapes[t].size() == 1 && gathers_statistics(first, shapes[t][0]);
    }
    if (unreduced.empty() || !others_reduced || !is_statistics_layer) continue;
    return found(
        {.ranks = run.numbers,
         .step = step.step,
         .evidence = fmt::format(
             "{} from number {} on, of a layer that gathers its statistics over the ranks, are "
             "updated by each rank's own gradient; the engine reduces the others",
             plural(static_cast<std::int64_t>(unreduced.size()), "parameter"), unreduced.front())});
  }
  return clean();
}

}  // namespace
}  // namespace lockstep::diagnose
