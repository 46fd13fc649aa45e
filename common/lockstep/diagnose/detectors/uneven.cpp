// Pitfalls of ranks that do not have equally much to do.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/passes.h>
#include <lockstep/diagnose/stall.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace lockstep::diagnose {
namespace {
Verdict uneven_batches(const Run& run);
Verdict local_early_stop(const Run& run);
}  // namespace

std::vector<Detector> uneven_detectors() {
  return {
      // Rule: some ranks have drawn more batches than others whose last pass has ended, and wait in
      // a collective that those never entered. Named are the odd ones out of the first pass in
      // which their numbers of batches differ, and the step of its first batch that is too many:
      // where they stand may be passes later. Not fooled by Join, where the ranks that are done
      // take part; by unequal batches that end in order; nor by a rank that failed in between.
      {.slug = "uneven-batches",
       .equation = Equation::same_calls,
       .line = "pass",
       .needs = {"pass_begin", "samples", "pass_end"},
       .participants = Participants::ranks,
       .stage = Stage::ranks_differ,
       .accounts_for = {"update-differs", "configuration-differs"},
       .detect = uneven_batches},
      // Rule: by the decision "stop" of the same number, ranks went apart. Without decisions: as
      // uneven-batches, but in each pass that all began they have equally many, and some ended in
      // order where others began one more.
      {.slug = "local-early-stop",
       .equation = Equation::same_calls,
       .line = "",
       .level = 2,
       .participants = Participants::ranks,
       .stage = Stage::membership,
       .detect = local_early_stop},
  };
}

namespace {
// A rank's last collective, if it never ended or failed.
const trace::Collective* stuck_in(const trace::ParticipantTrace& rank) {
  const auto calls = rank.all<trace::Collective>();
  if (calls.empty()) return nullptr;
  const auto& last = calls.back();
  return last.left_ns == 0 || last.event->failed != 0 ? last.event : nullptr;
}

// The rank took part in what `call` is on another rank.
bool takes_part(const trace::ParticipantTrace& rank, const trace::Collective& call) {
  for (const auto& at : rank.all<trace::Collective>())
    if (at.event->group == call.group && at.event->sequence == call.sequence)
      return at.event->op == call.op && at.event->sizes == call.sizes;
  return false;
}

// The ranks whose last pass is over, and those that are still inside one; and the batches that they have
// drawn since training began.
struct Progress {
  std::vector<int> ended, waiting;  // ranks
  std::size_t most_of_ended = 0, fewest_of_waiting = static_cast<std::size_t>(-1);
};

// Nothing where a rank began no pass.
std::optional<Progress> progress(const Run& run) {
  Progress all;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto passes = passes_of(*run.ranks[r], "train");
    if (passes.empty()) return std::nullopt;
    std::size_t batches = 0;
    for (const auto& pass : passes) batches += pass.batches.size();
    const bool ended = passes.back().ended;
    (ended ? all.ended : all.waiting).push_back(run.numbers[r]);
    if (ended)
      all.most_of_ended = std::max(all.most_of_ended, batches);
    else
      all.fewest_of_waiting = std::min(all.fewest_of_waiting, batches);
  }
  return all;
}

// Of a rank's n-th train batch; -1 where it drew fewer.
std::int64_t step_of_batch(const trace::ParticipantTrace& rank, std::size_t n) {
  for (const auto& at : rank.all<trace::Samples>())
    if (at.event->phase == "train" && n-- == 0) return at.step;
  return -1;
}

// The first pass in which a rank that waits has a batch more than one that has ended.
struct UnevenPass {
  std::size_t number = 0;            // from 0
  std::vector<std::size_t> batches;  // of each rank, in that pass
  bool ended_before = true;          // those that have ended never began it
  std::size_t least = 0, most = 0;
  std::int64_t step = -1;  // at which a rank that waits drew the first one that is too many
};

std::optional<UnevenPass> first_uneven_pass(const Run& run) {
  std::vector<std::vector<RankPass>> passes;
  for (const auto* rank : run.ranks) passes.push_back(passes_of(*rank, "train"));
  std::size_t all = 0;
  for (const auto& of_rank : passes) all = std::max(all, of_rank.size());
  std::vector<std::size_t> before(passes.size(), 0);  // batches of earlier passes
  for (std::size_t number = 0; number < all; ++number) {
    UnevenPass pass{.number = number, .least = static_cast<std::size_t>(-1)};
    std::size_t longest = 0;  // place of the rank with the most
    for (std::size_t r = 0; r < passes.size(); ++r) {
      pass.batches.push_back(number < passes[r].size() ? passes[r][number].batches.size() : 0);
      if (passes[r].back().ended) {
        pass.least = std::min(pass.least, pass.batches[r]);
        pass.ended_before = pass.ended_before && passes[r].size() <= number;
      } else if (pass.batches[r] > pass.most)
        pass.most = pass.batches[longest = r];
    }
    if (pass.most > pass.least) {
      pass.step = step_of_batch(*run.ranks[longest], before[longest] + pass.least);
      return pass;
    }
    for (std::size_t r = 0; r < passes.size(); ++r) before[r] += pass.batches[r];
  }
  return std::nullopt;
}

// It made groups and let go of none: it raised, or ended without a word.
bool ended_in_its_groups(const trace::ParticipantTrace& rank) {
  const auto groups = rank.all<trace::Group>();
  return !groups.empty() && std::none_of(groups.begin(), groups.end(), [](const auto& at) {
    return at.event->action == "leave";
  });
}

// A rank that has not begun the pass may have as many batches as the others, where it stands in a collective before
// it, or was ended before it.
bool some_may_still_begin(const Run& run, const UnevenPass& pass) {
  return std::any_of(run.ranks.begin(), run.ranks.end(), [&](const auto* rank) {
    if (passes_of(*rank, "train").size() > pass.number) return false;
    const auto* end = run.end_of(rank->participant.rank);
    const bool failed = end != nullptr && end->how != "completed";
    return failed || !rank->closed || ended_in_its_groups(*rank) || stuck_in(*rank) != nullptr;
  });
}

// Some ranks wait in a collective for others whose last pass is over, and that never entered it.
struct Uneven {
  Progress now;
  UnevenPass pass;
  const trace::Collective* call = nullptr;  // that a rank waits in
};

// Nothing where that is not so.
std::optional<Uneven> find_uneven(const Run& run) {
  auto now = run.once(progress);
  if (!now || now->waiting.empty() || now->ended.empty()) return std::nullopt;
  // A batch is recorded with its forward: one that waits before that has as many as those that have ended.
  if (now->fewest_of_waiting < now->most_of_ended) return std::nullopt;
  const auto stuck = [&](int rank) { return stuck_in(run.rank(rank)) != nullptr; };
  if (!std::all_of(now->waiting.begin(), now->waiting.end(), stuck))
    return std::nullopt;  // something else has ended it
  const auto* call = stuck_in(run.rank(now->waiting.front()));
  const auto stays = [&](int rank) { return takes_part(run.rank(rank), *call); };
  if (std::any_of(now->ended.begin(), now->ended.end(), stays))
    return std::nullopt;  // it waits for another
  auto pass = first_uneven_pass(run);
  if (!pass || some_may_still_begin(run, *pass)) return std::nullopt;
  return Uneven{std::move(*now), std::move(*pass), call};
}

Verdict uneven_batches(const Run& run) {
  if (!run.once(progress)) return not_triggered("a rank began no train pass");
  const auto& uneven = run.once(find_uneven);
  if (!uneven || uneven->pass.ended_before) return clean();
  const auto& [now, pass, call] = *uneven;
  return found(
      {.ranks = odd_ones_out(run.numbers, pass.batches),
       .step = pass.step,
       .sequence = call->sequence,
       .evidence = fmt::format("in pass {} ranks have from {} to {} batches; {} at batch {}, in {} "
                               "number {}; {} ended after {} of the whole run, and never called it",
                               pass.number + 1, pass.least, pass.most,
                               ranks_text(now.waiting, "is", "are"), now.fewest_of_waiting,
                               call->op, call->sequence, ranks_text(now.ended, "has", "have"),
                               plural(static_cast<std::int64_t>(now.most_of_ended), "batch"))});
}

// By the first decision that the ranks went apart by.
Verdict stopped_by_a_decision(const Run& run,
                              const std::vector<std::vector<std::int64_t>>& decisions) {
  std::size_t fewest = decisions.front().size();
  for (const auto& of_rank : decisions) fewest = std::min(fewest, of_rank.size());
  for (std::size_t n = 0; n < fewest; ++n) {
    std::vector<int> stop, go_on;
    for (std::size_t r = 0; r < decisions.size(); ++r)
      (decisions[r][n] != 0 ? stop : go_on).push_back(run.numbers[r]);
    if (stop.empty() || go_on.empty()) continue;
    const auto& place = stall_of(run);
    return found(
        {.ranks = stop,
         .step = place ? place->step : -1,
         .sequence = place ? place->sequence : -1,
         .evidence = fmt::format("by decision {} {} training, and {} on{}", n + 1,
                                 ranks_text(stop, "ends", "end"), ranks_text(go_on, "goes", "go"),
                                 place ? ": " + one_line(*place) : "")});
  }
  return clean();
}

Verdict local_early_stop(const Run& run) {
  std::vector<std::vector<std::int64_t>> decisions;
  bool all_told = true;
  for (const auto* rank : run.ranks) {
    auto& of_rank = decisions.emplace_back();
    for (const auto& at : rank->latest<trace::Decision>())
      if (at.event->name == "stop") of_rank.push_back(at.event->value);
    all_told = all_told && !of_rank.empty();
  }
  if (all_told) return stopped_by_a_decision(run, decisions);
  const bool any_told = std::any_of(decisions.begin(), decisions.end(),
                                    [](const auto& of_rank) { return !of_rank.empty(); });
  if (any_told || !run.once(progress))
    return not_triggered("a rank recorded no decision to stop or to go on, or began no train pass");
  const auto& uneven = run.once(find_uneven);
  if (!uneven || !uneven->pass.ended_before) return clean();
  const auto& [now, pass, call] = *uneven;
  return found({.ranks = now.ended,
                .step = pass.step,
                .sequence = call->sequence,
                .evidence = fmt::format("{} training after {}, and {} on and {} in {} number {}",
                                        ranks_text(now.ended, "ends", "end"),
                                        plural(static_cast<std::int64_t>(pass.number), "pass"),
                                        ranks_text(now.waiting, "goes", "go"),
                                        now.waiting.size() > 1 ? "wait" : "waits", call->op,
                                        call->sequence)});
}

}  // namespace
}  // namespace lockstep::diagnose
