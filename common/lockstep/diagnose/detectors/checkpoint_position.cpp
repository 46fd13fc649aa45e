// Pitfalls of where a run goes on: an epoch once more, or the beginning of one that was broken off.
#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/passes.h>
#include <lockstep/diagnose/restored.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace lockstep::diagnose {
namespace {
Verdict resume_repeats_epoch(const Run& run);
Verdict resume_mid_epoch_replays(const Run& run);
}  // namespace

// Both need the states, passes and samples of all ranks that save, be it one; as checkpoint_state.cpp, within
// one trace of a rank. Passes that nobody numbers could not come again, unless the run goes on inside of one.
std::vector<Detector> checkpoint_position_detectors() {
  return {
      // Rule: the pass had ended when the checkpoint was saved (or had come as far as its
      // repetition came, before the next pass), and the run goes on with the same epoch and the
      // same order. Not fooled by an epoch's number that means the next one, nor by passes that are
      // lost and made again because they came after the checkpoint.
      {.slug = "resume-repeats-epoch",
       .equation = Equation::saved_is_held,
       .needs = {"training_state", "pass_begin", "samples"},
       .fewest = 1,
       .accounts_for = {"schedule-unit-mismatch"},
       .detect = resume_repeats_epoch},
      // Rule: the pass had not ended, and the run goes on in the same epoch with W or more samples
      // that had been drawn from it, or at one of these in their order. Not fooled by a sampler that starts over where the program
      // throws away what was drawn, nor by an epoch that is given up. Where a pass draws with
      // replacement, not_triggered.
      {.slug = "resume-mid-epoch-replays",
       .equation = Equation::saved_is_held,
       .needs = {"training_state", "pass_begin", "samples"},
       .fewest = 1,
       .detect = resume_mid_epoch_replays},
  };
}

namespace {
// A train pass, as far as a checkpoint was saved from it, or as far as the rank got that resumed.
struct StretchOfPass {
  std::int64_t epoch = -1, step = -1;
  bool begun = false, ended = false;
  bool followed = false;  // by another train pass
  std::vector<std::int64_t> ids;
};

// The last train pass begun in [0, end), with what was drawn of it until `end`.
StretchOfPass last_before(const trace::ParticipantTrace& rank, std::size_t end) {
  const auto passes = cut_at_passes(rank, "train");
  const auto last = std::find_if(passes.rbegin(), passes.rend(),
                                 [&](const auto& pass) { return pass.begin < end; });
  if (last == passes.rend()) return {};
  auto pass = *last;
  pass.end = std::min(pass.end, end);
  StretchOfPass stretch{.epoch = pass.epoch,
                        .step = pass.step,
                        .begun = true,
                        .ended = pass.ended && last->end <= end};
  for (const auto& at : pass.batches())
    stretch.ids.insert(stretch.ids.end(), at.event->ids.begin(), at.event->ids.end());
  return stretch;
}

// The last train pass of an epoch after which another one began, before `end`.
std::optional<StretchOfPass> finished_before(const trace::ParticipantTrace& rank, std::size_t end,
                                             std::int64_t epoch) {
  const auto passes = cut_at_passes(rank, "train");
  std::size_t over = 0;  // where the next pass begins
  for (std::size_t k = 0; k + 1 < passes.size() && passes[k + 1].begin < end; ++k)
    if (passes[k].epoch == epoch) over = passes[k + 1].begin;
  if (over == 0) return std::nullopt;
  auto found = last_before(rank, over);
  found.ended = true;
  return found;
}

// A new optimizer may begin another training, whose epochs are counted anew.
bool keeps_optimizer(const Restored& restored) {
  const auto saved = part(*restored.saved, "optimizer");
  const auto resumed = part(*restored.resumed, "optimizer");
  return saved && resumed && saved->hash == resumed->hash;
}

// Where first_behind() begins to look. Of a job that does not tell its state it is known at the first update that it
// resumed: the pass has begun by then.
std::size_t begin_before(const trace::ParticipantTrace& rank, std::size_t place) {
  const auto attempt = place >= rank.last_attempt ? rank.last_attempt : 0;
  for (std::size_t i = place; i-- > attempt;) {
    const auto& event = rank.events[i];
    const auto* begin = event.as<trace::PassBegin>();
    if (begin != nullptr && begin->phase == "train") return i;
    const auto* file = event.as<trace::CheckpointFile>();
    if (event.is<trace::Update>() || event.is<trace::TrainingState>() ||
        (file != nullptr && file->action == "load"))
      break;
  }
  return place;
}

// The first train pass begun behind `place`.
StretchOfPass first_behind(const trace::ParticipantTrace& rank, std::size_t place) {
  std::size_t begun = 0, end = rank.events.size();
  bool followed = false;
  for (std::size_t i = begin_before(rank, place); i < rank.events.size(); ++i) {
    const auto* begin = rank.events[i].as<trace::PassBegin>();
    const bool again = begin != nullptr && begin->phase == "train";
    const auto* state = rank.events[i].as<trace::TrainingState>();
    const bool resumes = i > place && state != nullptr && state->moment == "resumed";
    if (resumes || (again && begun > 0)) {
      followed = again;
      end = i;
      break;
    }
    if (again) begun = i;
  }
  if (begun == 0) return {};
  auto stretch = last_before(rank, end);
  stretch.followed = followed;
  return stretch;
}

// How every rank that went on from what it had saved did so, one time that all of them did. Of several ranks, one alone
// may save.
struct Continuation {
  std::vector<StretchOfPass> before, after;
};

std::vector<Continuation> continuations(const Run& run) {
  std::vector<std::vector<Restored>> times;
  std::vector<const trace::ParticipantTrace*> ranks;
  std::size_t count = SIZE_MAX;
  for (const auto* rank : run.ranks) {
    auto of_rank = restored(*rank);
    if (of_rank.empty()) continue;
    ranks.push_back(rank);
    times.push_back(std::move(of_rank));
    count = std::min(count, times.back().size());
  }
  std::vector<Continuation> all(ranks.empty() ? 0 : count);
  for (std::size_t k = 0; k < all.size(); ++k)
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      auto after = first_behind(*ranks[r], times[r][k].resumed_place);
      auto before = last_before(*ranks[r], times[r][k].saved_place);
      if (after.begun && after.epoch < before.epoch && keeps_optimizer(times[r][k]))
        before = finished_before(*ranks[r], times[r][k].saved_place, after.epoch).value_or(before);
      all[k].before.push_back(std::move(before));
      all[k].after.push_back(std::move(after));
    }
  return all;
}

// The pass was over when the checkpoint was saved. A program that leaves a last, smaller batch out does not come to
// the sampler's end: then these very samples, when the epoch was trained once more, were all of it.
bool was_over(const StretchOfPass& before, const StretchOfPass& after) {
  return before.ended || (after.followed && after.ids == before.ids);
}

bool same_epoch(const Continuation& on, bool over) {
  for (std::size_t r = 0; r < on.before.size(); ++r)
    if (!on.before[r].begun || !on.after[r].begun || on.before[r].epoch != on.after[r].epoch ||
        on.after[r].ids.empty() || was_over(on.before[r], on.after[r]) != over)
      return false;
  return true;
}

bool begins_as_before(const StretchOfPass& before, const StretchOfPass& after) {
  const auto size = std::min(before.ids.size(), after.ids.size());
  return size > 0 && std::equal(before.ids.begin(), before.ids.begin() + size, after.ids.begin());
}

Draws draws_of(const std::vector<StretchOfPass>& stretches) {
  std::vector<std::int64_t> ids;
  for (const auto& stretch : stretches)
    ids.insert(ids.end(), stretch.ids.begin(), stretch.ids.end());
  return draws(ids);
}

// Ids come again within a pass, unequally often: some on one rank, or more of them on all ranks together than
// a sampler repeats that pads. Not so where all ranks draw the same.
bool draws_again(const std::vector<Draws>& ranks, const Draws& all) {
  const auto unequal = [](const Draws& some) { return some.least != some.most; };
  return std::any_of(ranks.begin(), ranks.end(), unequal) ||
         (unequal(all) && all.again() >= static_cast<std::int64_t>(ranks.size()));
}

bool draws_again(const std::vector<StretchOfPass>& stretches) {
  std::vector<Draws> ranks;
  for (const auto& stretch : stretches) ranks.push_back(draws(stretch.ids));
  return draws_again(ranks, draws_of(stretches));
}

// With replacement, that is; what a pass repeats of the part before a checkpoint says nothing then.
bool draws_with_replacement(const Run& run, const Continuation& on) {
  if (draws_again(on.before) || draws_again(on.after)) return true;
  const auto& passes = finished_passes(run, "train");
  return std::any_of(passes.begin(), passes.end(), [](const Pass& pass) {
    std::vector<Draws> ranks;
    for (const auto& rank : pass.ranks) ranks.push_back(draws(rank));
    return draws_again(ranks, draws(pass));
  });
}

// Of a program that numbers none of its passes, each is 0.
bool numbers_passes(const trace::ParticipantTrace& rank) {
  const auto begins = rank.all<trace::PassBegin>();
  return !rank.all<trace::SetEpoch>().empty() ||
         std::any_of(begins.begin(), begins.end(), [](const auto& at) {
           return at.event->phase == "train" && at.event->epoch > 0;
         });
}

std::optional<Verdict> not_comparable(const Run& run, const std::vector<Continuation>& all) {
  if (!numbers_passes(*run.ranks.front()))
    return not_triggered("no epoch was told, and no pass has a number");
  // Without a sampler that is told the epoch, an order that is the same in each pass says nothing.
  const auto& passes = finished_passes(run, "train");
  if (run.ranks.front()->all<trace::SetEpoch>().empty() && passes.size() > 1 &&
      all_in_one_order(passes))
    return not_triggered("no epoch was told, and all passes have one order");
  for (const auto& on : all)
    if (on.before.front().begun && on.after.front().begun) return std::nullopt;
  return not_triggered("no pass over the data came before a checkpoint and after it");
}

Verdict resume_repeats_epoch(const Run& run) {
  const auto all = continuations(run);
  if (auto verdict = not_comparable(run, all)) return *verdict;
  for (const auto& on : all) {
    if (!same_epoch(on, true)) continue;
    bool repeats = true;
    for (std::size_t r = 0; r < on.before.size(); ++r)
      repeats = repeats && begins_as_before(on.before[r], on.after[r]);
    if (!repeats) continue;
    return found({.ranks = run.numbers,
                  .step = on.after.front().step,
                  .evidence = fmt::format("epoch {} was over when the checkpoint was saved, and "
                                          "the run goes on with its samples in the same order",
                                          on.after.front().epoch)});
  }
  return clean();
}

// How many samples of the part before come again, where the run goes on inside of that: it leaves out a part of it, and
// not all. 0: it does not.
std::int64_t comes_again(const StretchOfPass& before, const StretchOfPass& after) {
  if (!before.begun || !after.begun || before.ended || before.epoch != after.epoch ||
      after.ids.empty() || draws(before.ids).most > 1)
    return 0;
  const auto from = std::ranges::find(before.ids, after.ids.front());
  const auto left = std::min<std::ptrdiff_t>(before.ids.end() - from, std::ssize(after.ids));
  if (from == before.ids.begin() || !std::equal(from, from + left, after.ids.begin())) return 0;
  return left;
}

// It says by itself where it goes on, so no number of a pass is needed.
std::optional<Finding> leaves_out_too_few(const Run& run, const Continuation& on) {
  std::int64_t again = 0, drawn = 0;
  for (std::size_t r = 0; r < on.before.size(); ++r) {
    const auto of_rank = comes_again(on.before[r], on.after[r]);
    if (of_rank == 0) return std::nullopt;
    again += of_rank;
    drawn += std::ssize(on.before[r].ids);
  }
  if (again < run.world_size) return std::nullopt;
  return Finding{
      .ranks = run.numbers,
      .step = on.after.front().step,
      .evidence = fmt::format("the pass was broken off after {}, and the run goes on inside of "
                              "these: {} of them are drawn again, in the same order",
                              plural(drawn, "sample"), again)};
}

Verdict resume_mid_epoch_replays(const Run& run) {
  const auto all = continuations(run);
  for (const auto& on : all)
    if (auto finding = leaves_out_too_few(run, on)) return found(std::move(*finding));
  if (auto verdict = not_comparable(run, all)) return *verdict;
  for (const auto& on : all) {
    if (!same_epoch(on, false)) continue;
    const auto before = draws_of(on.before), after = draws_of(on.after);
    const auto twice = in_both(before, after);
    if (twice < run.world_size) continue;  // a padded sampler repeats fewer
    if (draws_with_replacement(run, on))
      return not_triggered("samples come again within a pass: they are drawn with replacement");
    return found({.ranks = run.numbers,
                  .step = on.after.front().step,
                  .evidence = fmt::format(
                      "epoch {} was broken off after {}, and {} of them are drawn again",
                      on.after.front().epoch, plural(before.different, "sample"), twice)});
  }
  return clean();
}

}  // namespace
}  // namespace lockstep::diagnose
