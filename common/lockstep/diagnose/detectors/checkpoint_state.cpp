// Pitfalls of what a checkpoint holds beside the weights.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/restored.h>

#include <algorithm>
#include <optional>

namespace lockstep::diagnose {
namespace {
Verdict optimizer_state_missing(const Run& run);
Verdict scheduler_or_rng_state_missing(const Run& run);
Verdict optimizer_state_on_wrong_device(const Run& run);
Verdict ema_on_one_rank(const Run& run);
}  // namespace

// All compare the state that a rank resumed with what it held when a checkpoint with the same model
// was saved, within one trace of a rank: one process that saves and goes on from it, or the traces
// of a job's attempts put together (trace/attempts.h). Of an attempt alone, in which nothing was
// saved before it resumed, they say not_triggered.
std::vector<Detector> checkpoint_state_detectors() {
  return {
      // Rule: the optimizer's state is on a device where the model is not, or nowhere where it is,
      // and the rank made no update after it. Not fooled by step counts, which live on the CPU.
      {.slug = "optimizer-state-on-wrong-device",
       .equation = Equation::saved_is_held,
       .needs = {"training_state", "update"},
       .fewest = 1,
       .complete = false,
       .stage = Stage::failure,
       .detect = optimizer_state_on_wrong_device},
      // Rule: the optimizer's state is another one; or some ranks go on with none, and others with
      // some. Of ranks that save nothing, those that resumed as one that lost it did. Not fooled by
      // state that is in a file of its own. The state is one hash: a run that resumes with another
      // learning rate or weight decay, by choice, is named too, but for Python's, whose hash leaves
      // options out.
      {.slug = "optimizer-state-missing",
       .equation = Equation::saved_is_held,
       .whole = true,
       .needs = {"training_state"},
       .fewest = 1,
       .complete = false,
       .detect = optimizer_state_missing},
      // Rule: the schedule, or a rank's random generator, is in another state. Advice: the
      // learning rate is as when the run began. Not fooled by a schedule that is counted up again.
      {.slug = "scheduler-or-rng-state-missing",
       .equation = Equation::saved_is_held,
       .needs = {"training_state"},
       .fewest = 1,
       .complete = false,
       .detect = scheduler_or_rng_state_missing},
      // Needs two ranks or more that keep averaged weights. Rule: their averages differ though
      // their weights do not. Not fooled by an average that only one rank has.
      {.slug = "ema-on-one-rank",
       .equation = Equation::equal_after,
       .line = "checkpoint",
       .needs = {"training_state"},
       .accounts_for = {"outside-parameters-differ"},
       .detect = ema_on_one_rank},
  };
}

namespace {
const char* const kNothingRestored = "no rank saved its state and went on with the same model";

// The time at which this part came back with other values. Where it is on another device now, nothing is said
// of its values.
std::optional<Restored> loss_of(const trace::ParticipantTrace& rank, const std::string& name) {
  for (const auto& time : restored(rank)) {
    const auto before = part(*time.saved, name), after = part(*time.resumed, name);
    if (before && after && before->hash != after->hash &&
        (after->devices.empty() || before->devices == after->devices))
      return time;
  }
  return std::nullopt;
}

// A rank that saved nothing that it goes on from resumed with the very model and part that another one lost it with.
bool shares(const trace::ParticipantTrace& rank, const Restored& loss, const std::string& name) {
  if (!restored(rank).empty()) return false;
  const auto same = [&](const trace::TrainingState& state, const std::string& of) {
    const auto own = part(state, of), other = part(*loss.resumed, of);
    return own && other && own->hash == other->hash;
  };
  const auto states = rank.all<trace::TrainingState>();
  return std::any_of(states.begin(), states.end(), [&](const auto& at) {
    return same(*at.event, "model") && same(*at.event, name);
  });
}

std::vector<int> ranks_that_lost(const Run& run, const std::string& name, std::int64_t* step) {
  std::optional<Restored> first;
  std::vector<int> ranks;
  for (const auto* rank : run.ranks)
    if (!first) first = loss_of(*rank, name);
  if (!first) return ranks;
  *step = first->step;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    if (loss_of(*run.ranks[r], name) || shares(*run.ranks[r], *first, name))
      ranks.push_back(run.numbers[r]);
  return ranks;
}

bool any_restored(const Run& run) {
  return std::any_of(run.ranks.begin(), run.ranks.end(),
                     [](const auto* rank) { return !restored(*rank).empty(); });
}

Verdict lost(const Run& run, const std::vector<std::string>& names) {
  if (!any_restored(run)) return not_triggered(kNothingRestored);
  for (const auto& name : names) {
    std::int64_t step = -1;
    const auto ranks = ranks_that_lost(run, name, &step);
    if (ranks.empty()) continue;
    return found(
        {.ranks = ranks,
         .step = step,
         .evidence = fmt::format(
             "the model is the saved one, and the {} is not what it was when it was saved", name)});
  }
  return clean();
}

// Where ranks go on from a checkpoint together: those whose optimizers hold nothing, while others' hold state. Of a
// sharded optimizer each rank has another part, so that there is nothing else to compare.
Verdict resumed_without(const Run& run) {
  std::vector<trace::EventsOf<trace::TrainingState>> resumed;
  std::size_t moments = SIZE_MAX;
  for (const auto* rank : run.ranks) {
    resumed.push_back(rank->latest<trace::TrainingState>().where([](const auto& at) {
      return at.event->moment == "resumed" && part(*at.event, "optimizer");
    }));
    moments = std::min(moments, resumed.back().size());
  }
  for (std::size_t k = 0; k < moments; ++k) {
    std::vector<int> without;
    for (std::size_t r = 0; r < resumed.size(); ++r) {
      if (part(*resumed[r][k].event, "optimizer")->devices.empty())
        without.push_back(run.numbers[r]);
    }
    if (without.empty() || without.size() == resumed.size()) continue;
    return found(
        {.ranks = without,
         .step = resumed.front()[k].step,
         .evidence = ranks_text(without, "goes", "go") +
                     " on from a checkpoint with an optimizer that holds no state, and the "
                     "other ranks' optimizers hold some"});
  }
  return clean();
}

Verdict optimizer_state_missing(const Run& run) {
  auto verdict = lost(run, {"optimizer"});
  if (verdict.state == State::found || run.ranks.size() < 2) return verdict;
  auto together = resumed_without(run);
  return together.state == State::found ? together : verdict;
}

// The first group's rates of the updates among a rank's events from `begin` to `end`.
std::vector<double> rates_of(const trace::ParticipantTrace& rank, std::size_t begin,
                             std::size_t end) {
  std::vector<double> rates;
  for (std::size_t i = begin; i < end; ++i)
    if (const auto* update = rank.events[i].as<trace::Update>(); update && !update->lr.empty())
      rates.push_back(update->lr.front());
  return rates;
}

// The first position that a schedule tells after it has resumed lies behind the last one before it was saved.
bool schedule_goes_on(const trace::ParticipantTrace& rank, const Restored& time) {
  std::int64_t last = -1;
  for (std::size_t i = 0; i < rank.events.size(); ++i) {
    const auto* schedule = rank.events[i].as<trace::Schedule>();
    if (schedule == nullptr) continue;
    if (i < time.saved_place) last = schedule->position;
    if (i > time.resumed_place && schedule->position > 0)
      return last >= 0 && schedule->position > last;
  }
  return false;
}

// The k-th rate is again the k-th of the run's start, which the run had left for good by the time it was saved.
bool comes_again(const std::vector<double>& before, const std::vector<double>& after,
                 std::size_t k) {
  if (before.size() < k + 2 || after.size() < k + 1 || after[k] != before[k]) return false;
  const auto left = std::find_if(before.begin() + static_cast<std::ptrdiff_t>(k), before.end(),
                                 [&](double rate) { return rate != before[k]; });
  return left != before.end() && std::find(left, before.end(), before[k]) == before.end();
}

// With its optimizer's state, the run goes on at the very rate that it began with; or, where that state brings the rate
// of the first update, with the rates of the next two. It may be meant, so this is advice.
std::optional<Finding> begins_with_rates_again(const Run& run) {
  for (const auto* rank : run.ranks)
    for (const auto& time : restored(*rank)) {
      const auto saved = part(*time.saved, "optimizer"), resumed = part(*time.resumed, "optimizer");
      if (!saved || !resumed || saved->hash != resumed->hash) continue;
      const auto before = rates_of(*rank, 0, time.saved_place);
      const auto after = rates_of(*rank, time.resumed_place, rank->events.size());
      // A schedule that goes on may come to its first rate again, as one of warm restarts; it does not stay there.
      if (schedule_goes_on(*rank, time) && (after.size() < 2 || after[0] != after[1])) continue;
      const bool at_once = comes_again(before, after, 0);
      const bool next = comes_again(before, after, 1) && comes_again(before, after, 2);
      if (!at_once && !next) continue;
      return Finding{.severity = Severity::advice,
                     .ranks = run.numbers,
                     .step = time.step,
                     .evidence = fmt::format(
                         "the model and the optimizer's state are the saved ones, and the learning "
                         "rate is {}, as when the run began: it was {} when they were saved",
                         number(after[at_once ? 0 : 1]), number(before.back()))};
    }
  return std::nullopt;
}

Verdict scheduler_or_rng_state_missing(const Run& run) {
  const auto verdict = lost(run, {"scheduler", "rng_state"});
  if (verdict.state != State::clean) return verdict;
  const auto again = begins_with_rates_again(run);
  return again ? found(*again) : verdict;
}

// The devices of a part: "cpu, cuda:0" has the word "cuda:0".
bool has_word(const std::string& devices, const std::string& device) {
  return (", " + devices + ",").find(", " + device + ",") != std::string::npos;
}

bool is_elsewhere(const std::string& state, const std::string& model) {
  for (std::size_t begin = 0; begin < state.size();) {
    const auto end = std::min(state.find(", ", begin), state.size());
    const auto device = state.substr(begin, end - begin);
    if (device != "cpu" && !has_word(model, device)) return true;
    begin = end + 2;
  }
  return !model.empty() && !state.empty() && model.find(',') == std::string::npos &&
         !has_word(state, model);
}

bool updates_after(const trace::ParticipantTrace& rank, std::size_t place) {
  for (std::size_t i = place; i < rank.events.size(); ++i)
    if (rank.events[i].is<trace::Update>()) return true;
  return false;
}

Verdict optimizer_state_on_wrong_device(const Run& run) {
  if (!any_restored(run)) return not_triggered(kNothingRestored);
  std::vector<int> ranks;
  std::string evidence;
  std::int64_t step = -1;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& time : restored(*run.ranks[r])) {
      const auto model = part(*time.resumed, "model"), state = part(*time.resumed, "optimizer");
      if (!model || !state || !is_elsewhere(state->devices, model->devices) ||
          updates_after(*run.ranks[r], time.resumed_place))
        continue;
      if (ranks.empty() || ranks.back() != run.numbers[r]) ranks.push_back(run.numbers[r]);
      if (!evidence.empty()) continue;
      step = time.step;
      evidence =
          fmt::format("the optimizer's state is on {} and the model on {}, and no update followed",
                      state->devices, model->devices);
    }
  if (ranks.empty()) return clean();
  return found({.ranks = ranks, .step = step, .evidence = evidence});
}

Verdict ema_on_one_rank(const Run& run) {
  std::vector<trace::EventsOf<trace::TrainingState>> states;
  std::size_t moments = SIZE_MAX;
  for (const auto* rank : run.ranks) {
    states.push_back(rank->all<trace::TrainingState>().where(
        [](const auto& at) { return at.event->moment != "loaded" && part(*at.event, "average"); }));
    moments = std::min(moments, states.back().size());
  }
  bool any = false;
  for (std::size_t k = 0; k < moments; ++k) {
    std::vector<int> ranks;
    std::vector<std::uint64_t> models, averages;
    for (std::size_t r = 0; r < states.size(); ++r) {
      const auto model = part(*states[r][k].event, "model"),
                 average = part(*states[r][k].event, "average");
      if (!model || !average) continue;
      ranks.push_back(run.numbers[r]);
      models.push_back(model->hash);
      averages.push_back(average->hash);
    }
    if (ranks.size() < 2) continue;
    any = true;
    const auto odd = odd_ones_out(ranks, averages);
    if (odd.empty() || !odd_ones_out(ranks, models).empty()) continue;
    return found({.ranks = odd,
                  .step = states.front()[k].step,
                  .evidence = "all ranks hold the same weights, and averages of them that differ"});
  }
  return any ? clean() : not_triggered("fewer than two ranks keep averaged weights");
}

}  // namespace
}  // namespace lockstep::diagnose
