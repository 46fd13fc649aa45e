// Pitfalls of gradient accumulation: several backwards for one update.
#include <lockstep/diagnose/backwards.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>

#include <algorithm>

namespace lockstep::diagnose {
namespace {
Verdict needless_reductions(const Run& run, Severity severity, double Backward::*reduced,
                            const std::string& told);
Verdict accumulation_not_divided(const Run& run);
Verdict accumulation_off_by_one(const Run& run);
Verdict mean_of_microbatch_means(const Run& run);
Verdict gradients_cleared_too_early(const Run& run);
}  // namespace

// All need updates after several backwards whose samples are the parts of one batch. The first two and the last go by
// losses, or by training forwards and the samples before each, and the last also by what each is given. The others need
// losses, and a declared mean loss.
std::vector<Detector> accumulation_detectors() {
  return {
      // Advice. Rule: a backward that is not the last before an update had all parameters' elements
      // reduced. Not fooled by many all-reduces of few elements each (buckets, logged losses), nor
      // by several forwards or losses of one batch.
      {.slug = "sync-every-microbatch",
       .equation = Equation::none,
       .needs = {"model", "collective", "update"},
       .participants = Participants::ranks,
       .complete = false,
       .detect =
           [](const Run& run) {
             return needless_reductions(run, Severity::advice, &Backward::reduced,
                                        ", where one reduction would do");
           }},
      // Rule: the same, while the engine had been told not to reduce.
      {.slug = "no-sync-around-backward-only",
       .equation = Equation::none,
       .needs = {"model", "collective", "update"},
       .participants = Participants::ranks,
       .complete = false,
       .accounts_for = {"sync-every-microbatch"},
       .detect =
           [](const Run& run) {
             return needless_reductions(run, Severity::violation, &Backward::reduced_unwanted,
                                        " though the engine had been told not to");
           }},
      // Rule: every backward starts from its samples' mean loss, undivided, and the reduced
      // gradient is the mean of the ranks' sums. Not fooled by gradients that are divided later,
      // nor by several losses of the same samples.
      {.slug = "accumulation-not-divided",
       .equation = Equation::loss_weights,
       .line = "update",
       .needs = {"intent", "loss", "local_gradients", "reduced_gradients", "update"},
       .participants = Participants::ranks,
       .fewest = 1,
       .complete = false,
       .accounts_for = {"gradient-not-the-mean"},
       .detect = accumulation_not_divided},
      // Rule: the first update comes after fewer backwards than later ones, though their losses are
      // divided for as many. Not fooled by a short last group, nor by batches that are meant to
      // grow.
      {.slug = "accumulation-off-by-one",
       .equation = Equation::loss_weights,
       .line = "update",
       .needs = {"intent", "loss", "update"},
       .participants = Participants::ranks,
       .fewest = 1,
       .complete = false,
       .accounts_for = {"gradient-not-the-mean"},
       .detect = accumulation_off_by_one},
      // Rule: backwards of unequal numbers of samples start from equal shares of their mean loss.
      // Not fooled by means that are weighted by those numbers.
      {.slug = "mean-of-microbatch-means",
       .equation = Equation::loss_weights,
       .line = "update",
       .needs = {"intent", "loss", "update"},
       .participants = Participants::ranks,
       .fewest = 1,
       .complete = false,
       .accounts_for = {"gradient-not-the-mean"},
       .detect = mean_of_microbatch_means},
      // Rule: in each update after several backwards, and in at least half of all updates, two or
      // more, the gradients of all backwards but the last were cleared, and the reduced gradient is
      // the last one's. Where losses were recorded, they are divided for all of them; where none
      // were, this is advice, since the cleared gradients may have been used before (a step by
      // hand, as in meta-learning or for adversarial samples). Not fooled by a batch that is left
      // out now and then, nor by gradients that are put aside and put together later.
      {.slug = "gradients-cleared-too-early",
       .equation = Equation::mean_gradient,
       .line = "",
       .needs = {"gradient_arrived", "local_gradients", "reduced_gradients", "update"},
       .participants = Participants::ranks,
       .fewest = 1,
       .complete = false,
       .detect = gradients_cleared_too_early},
  };
}

namespace {
// Nothing where anything needed was not recorded.
const GradientStep* gradient_step(const Run& run, std::int64_t step) {
  const auto& steps = gradient_steps(run);
  const auto at =
      std::find_if(steps.begin(), steps.end(), [&](const auto& s) { return s.step == step; });
  return at == steps.end() ? nullptr : &*at;
}

double sum_of_shares(const UpdateSpan& span) {
  double sum = 0;
  for (const auto& backward : span.backwards) sum += backward.share;
  return sum;
}

// Backwards of the parts of one batch, each sample in one of them. Two losses of the same samples are
// no accumulation.
bool accumulates(const UpdateSpan& span, const std::vector<Backward>& backwards) {
  double count = 0;
  for (const auto& backward : backwards) count += backward.count;
  return span.updated && backwards.size() > 1 && span.samples == count &&
         std::all_of(backwards.begin(), backwards.end(), [](const auto& b) { return b.count > 0; });
}

// The same, of a program that does not tell what it draws: each forward is given samples that no other one is.
bool accumulates_rows(const UpdateSpan& span) {
  return span.updated && span.forwards.size() > 1 && span.samples == 0 &&
         std::all_of(span.forwards.begin(), span.forwards.end(),
                     [](const auto& forward) { return forward.new_rows > 0; });
}

using BackwardsOf = const std::vector<Backward>& (*)(const UpdateSpan&);

const std::vector<Backward>& with_losses(const UpdateSpan& span) {
  return span.backwards;
}
// Where no losses were recorded, each forward is taken for one backward.
const std::vector<Backward>& with_losses_or_not(const UpdateSpan& span) {
  return span.backwards.empty() ? span.forwards : span.backwards;
}

// The spans in which ranks accumulated, rank by rank.
struct Accumulation {
  std::vector<UpdateSpan> spans;
  bool on_every_rank = true;
};
Accumulation accumulation(const Run& run, BackwardsOf backwards_of = with_losses) {
  Accumulation result;
  for (const auto& spans : update_spans(run)) {
    const auto before = result.spans.size();
    for (const auto& span : spans)
      if (accumulates(span, backwards_of(span))) result.spans.push_back(span);
    result.on_every_rank = result.on_every_rank && result.spans.size() > before;
  }
  return result;
}

const char* const kNoAccumulation =
    "no update has every rank's losses of several backwards, each sample in one of them";

// Reductions of all parameters, or more, before the last of an update's backwards; none where that is not reduced.
std::int64_t needless_of(const UpdateSpan& span, double Backward::*reduced) {
  const auto& backwards = with_losses_or_not(span);
  if (backwards.back().reduced < span.elements) return 0;
  return std::count_if(backwards.begin(), backwards.end() - 1,
                       [&](const auto& backward) { return backward.*reduced >= span.elements; });
}

// What the two detectors of needless reductions have in common: the backwards before the last one of
// an update that reduced all parameters.
Verdict needless_reductions(const Run& run, Severity severity, double Backward::*reduced,
                            const std::string& told) {
  const auto accumulated = accumulation(run, with_losses_or_not);
  if (!accumulated.on_every_rank)
    return not_triggered(
        "no update has every rank's losses, or forwards and samples, of several backwards, each "
        "sample in one of them");
  for (const auto& span : accumulated.spans) {
    if (span.elements == 0) return not_triggered("a rank did not record its parameters' shapes");
    const auto times = needless_of(span, reduced);
    if (times == 0) continue;
    return found({.severity = severity,
                  .ranks = run.numbers,
                  .step = span.step,
                  .evidence = fmt::format("of the {} backwards of this update, {} before the last "
                                          "one reduced all {} elements of the gradients{}",
                                          with_losses_or_not(span).size(), times,
                                          whole(span.elements), told)});
  }
  return clean();
}

Verdict accumulation_not_divided(const Run& run) {
  if (!declares_mean_loss(run)) return not_triggered(kNoMeanLoss);
  const auto accumulated = accumulation(run);
  if (!accumulated.on_every_rank) return not_triggered(kNoAccumulation);
  const UpdateSpan* first = nullptr;
  bool hidden = true;
  for (const auto& span : accumulated.spans) {
    const auto* step = gradient_step(run, span.step);
    if (span.cleared > 0 || step == nullptr) continue;
    const auto scale = unclipped_scale(run, *step);
    const bool undivided =
        scale && is_near(*scale, 1, 0.01) &&
        std::all_of(span.backwards.begin(), span.backwards.end(),
                    [](const auto& backward) { return is_near(backward.share, 1, 1e-3); });
    if (!undivided) return clean();
    const auto times = static_cast<double>(span.backwards.size());
    hidden = hidden && is_hidden_by_clipping(run, span.step, times);
    if (first == nullptr) first = &span;
  }
  if (first == nullptr)
    return not_triggered("no such update has every rank's local and reduced gradients");
  return found({.severity = hidden ? Severity::advice : Severity::violation,
                .ranks = run.numbers,
                .step = first->step,
                .evidence = fmt::format("each of {} backwards starts from its samples' mean loss, "
                                        "divided by nothing, and the gradients are their sum{}",
                                        first->backwards.size(),
                                        hidden ? "; clipping has hidden it so far" : "")});
}

Verdict accumulation_off_by_one(const Run& run) {
  if (!declares_mean_loss(run)) return not_triggered(kNoMeanLoss);
  std::size_t first = 0, most = 0;
  for (const auto& of_rank : update_spans(run)) {
    std::vector<UpdateSpan> spans;
    for (const auto& span : of_rank)
      if (span.updated && !span.backwards.empty()) spans.push_back(span);
    if (spans.size() < 2)
      return not_triggered("a rank has no two updates with the losses behind them");
    first = spans.front().backwards.size();
    most = 0;
    for (const auto& span : spans) most = std::max(most, span.backwards.size());
    const double part = static_cast<double>(first) / static_cast<double>(most);
    if (spans.front().step != 0 || first == most ||
        !is_near(sum_of_shares(spans.front()), part, 0.02))
      return clean();
  }
  return found(
      {.ranks = run.numbers,
       .step = 0,
       .evidence = fmt::format("the first update comes after {}, whose loss is divided as if there "
                               "were {}, as there are for later updates",
                               plural(static_cast<std::int64_t>(first), "backward"), most)});
}

Verdict mean_of_microbatch_means(const Run& run) {
  if (!declares_mean_loss(run)) return not_triggered(kNoMeanLoss);
  const auto accumulated = accumulation(run);
  if (!accumulated.on_every_rank) return not_triggered(kNoAccumulation);
  bool looked = false;
  for (const auto& span : accumulated.spans) {
    const auto& all = span.backwards;
    const auto [least, greatest] = std::minmax_element(
        all.begin(), all.end(), [](const auto& a, const auto& b) { return a.count < b.count; });
    if (least->count == greatest->count) continue;
    looked = true;
    const double equal = 1.0 / static_cast<double>(all.size());
    if (!std::all_of(all.begin(), all.end(),
                     [&](const auto& backward) { return is_near(backward.share, equal, 1e-3); }))
      continue;
    return found({.ranks = run.numbers,
                  .step = span.step,
                  .evidence = fmt::format(
                      "backwards of {} and of {} samples each start from {} times their mean loss, "
                      "so a sample counts {} times as much in one as in the other",
                      whole(least->count), whole(greatest->count), number(equal),
                      number(greatest->count / least->count))});
  }
  if (!looked) return not_applicable("all microbatches of an update are of one size");
  return clean();
}

// The step's reduced gradient is that of the last backward, or a multiple of it.
bool goes_by_what_is_left(const Run& run, std::int64_t step) {
  const auto* at = gradient_step(run, step);
  return at != nullptr &&
         std::all_of(at->reduced.begin(), at->reduced.end(), [&](const auto& reduced) {
           return std::any_of(at->means.begin(), at->means.end(),
                              [&](const auto& mean) { return angle(reduced, mean) <= 0.01; });
         });
}

// Each loss is divided for as many backwards as the update has.
bool is_divided(const UpdateSpan& span) {
  return is_near(sum_of_shares(span), 1, 0.02);
}

Verdict gradients_cleared_too_early(const Run& run) {
  constexpr int kUpdates = 2;  // a program may leave out a batch now and then
  const UpdateSpan* first = nullptr;
  for (const auto& of_rank : update_spans(run)) {
    std::int64_t looked = 0, wrong = 0;
    for (const auto& span : of_rank) {
      if (!span.updated || span.arrived.empty()) continue;
      ++looked;
      const auto& backwards = with_losses_or_not(span);
      if (!accumulates(span, backwards) && !accumulates_rows(span)) continue;
      const bool by_the_last = span.cleared + 1 == static_cast<std::int64_t>(backwards.size());
      const bool meant_for_all = span.backwards.empty() || is_divided(span);
      if (!by_the_last || !meant_for_all || !goes_by_what_is_left(run, span.step)) return clean();
      if (wrong++ == 0 && first == nullptr) first = &span;
    }
    if (wrong < kUpdates)
      return not_triggered(
          "no two updates have every rank's gradients of several backwards, each sample in one of "
          "them");
    if (2 * wrong < looked) return clean();
  }
  const auto backwards = with_losses_or_not(*first).size();
  return found({.severity = first->backwards.empty() ? Severity::advice : Severity::violation,
                .ranks = run.numbers,
                .step = first->step,
                .evidence = fmt::format(
                    "of the {} backwards of this update the gradients of the first {} were cleared "
                    "before the next one: the update goes by the last one alone",
                    backwards, backwards == 2 ? "one" : std::to_string(backwards - 1))});
}

}  // namespace
}  // namespace lockstep::diagnose
