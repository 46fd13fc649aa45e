// Pitfalls of sharding: split by nobody, or twice.
#include <lockstep/diagnose/detectors.h>
#include <lockstep/diagnose/passes.h>

#include <algorithm>
#include <set>

namespace lockstep::diagnose {
namespace {

const char* const kNoPass = "no train pass that every rank began and finished";
const char* const kNoSize = "the size of the data set was not recorded";
const char* const kMissingRank = "a rank left no trace";

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// The ranks share the work: an engine reduces their gradients, or a collective other than a barrier
// ran after training began. Ranks that each train on their own may well draw the same samples.
bool train_together(const Run& run) {
  for (const auto* rank : run.ranks) {
    if (!rank->all<trace::Engine>().empty()) return true;
    for (const auto& at : rank->all<trace::Collective>())
      if (at.step >= 0 && !at.event->sizes.empty()) return true;
  }
  return false;
}

bool all_equal(const std::vector<Draws>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const Draws& drawn) { return drawn == ranks.front(); });
}

std::vector<Draws> draws_by_rank(const Pass& pass) {
  std::vector<Draws> result;
  for (const auto& rank : pass.ranks) result.push_back(draws(rank));
  return result;
}

// The batches come in rounds of `workers` equal ones.
bool in_equal_rounds(const RankPass& pass, std::int64_t workers) {
  const auto round = static_cast<std::size_t>(workers);
  if (pass.batches.empty() || pass.batches.size() % round != 0) return false;
  for (std::size_t b = 0; b < pass.batches.size(); ++b)
    if (pass.batches[b] != pass.batches[b - b % round]) return false;
  return true;
}

}  // namespace

Verdict no_sharding(const trace::Trace& trace) {
  const Run run(trace);
  if (run.world_size < 2) return not_applicable("one rank reads everything");
  if (!run.complete) return not_triggered(kMissingRank);
  const auto passes = finished_passes(run, "train");
  if (passes.empty()) return not_triggered(kNoPass);
  const auto size = global_size(run, "train");
  if (size == 0) return not_triggered(kNoSize);
  const auto share = ceil_div(size, run.world_size);
  if (share >= size) return not_applicable("a share of the data is all of it");
  if (!train_together(run)) return not_triggered("no sign that these ranks train together");
  for (const auto& pass : passes) {
    const auto ranks = draws_by_rank(pass);
    const auto& first = ranks.front();
    if (!all_equal(ranks) || static_cast<std::int64_t>(first.distinct.size()) <= share) continue;
    if (std::any_of(ranks.begin(), ranks.end(), [](const Draws& d) { return d.most > 1; }))
      continue;
    return found({.pitfall = "no-sharding",
                  .ranks = run.numbers,
                  .step = pass.step(),
                  .evidence = "every rank drew the same " + of(first.distinct.size(), size) +
                              " samples in one pass; a share is " + std::to_string(share)});
  }
  return clean();
}

namespace {

// Batches of different samples, whatever their order.
std::int64_t different_batches(const RankPass& pass) {
  std::set<std::vector<std::int64_t>> different;
  for (auto ids : pass.batches) {
    std::sort(ids.begin(), ids.end());
    different.insert(std::move(ids));
  }
  return static_cast<std::int64_t>(different.size());
}

}  // namespace

Verdict stream_not_sharded(const trace::Trace& trace) {
  const Run run(trace);
  if (!run.complete) return not_triggered(kMissingRank);
  const auto passes = finished_passes(run, "train");
  if (passes.empty()) return not_triggered(kNoPass);
  const bool together = train_together(run);
  for (const auto& pass : passes) {
    const auto ranks = draws_by_rank(pass);
    const auto times = ranks.front().most;
    // One batch, or a few, trained again and again are a check that the model can learn at all.
    bool all_repeat = times > 1, rounds = true, few = false;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      all_repeat = all_repeat && ranks[r].least == times && ranks[r].most == times;
      rounds = rounds && times > 0 && in_equal_rounds(pass.ranks[r], times);
      few = few || different_batches(pass.ranks[r]) <= times;
    }
    const bool same_on_all = ranks.size() > 1 && all_equal(ranks) && together;
    if (few || !all_repeat || !(same_on_all || rounds)) continue;
    const auto all = draws(pass);
    return found({.pitfall = "stream-not-sharded",
                  .ranks = run.numbers,
                  .step = pass.step(),
                  .evidence = "in one pass each rank drew each of its ids " +
                              std::to_string(times) + " times; " + plural(all.total, "draw") +
                              " for " +
                              plural(static_cast<std::int64_t>(all.distinct.size()), "sample")});
  }
  return clean();
}

namespace {

// What a rank drew of the part that it holds: exactly 1/W of it, as a sampler deals, rounded up
// (padded) or down (cut); as many whole batches as fit into that; or something else.
enum class Share { exact, whole_batches, other };

Share share_drawn(const RankPass& pass, std::int64_t held, std::int64_t world_size) {
  const auto drawn = draws(pass).total;
  const auto padded = ceil_div(held, world_size), cut = held / world_size;
  if (drawn == 0) return Share::other;
  if (drawn == padded || drawn == cut) return Share::exact;
  const auto batch = static_cast<std::int64_t>(pass.batches.front().size());
  for (const auto& ids : pass.batches)
    if (static_cast<std::int64_t>(ids.size()) != batch) return Share::other;
  return drawn == padded / batch * batch || drawn == cut / batch * batch ? Share::whole_batches
                                                                         : Share::other;
}

}  // namespace

Verdict sharded_twice(const trace::Trace& trace) {
  const Run run(trace);
  if (run.world_size < 2) return not_applicable("one rank has one shard");
  const auto sets = train_sets(run);
  if (!run.complete || sets.empty()) return not_triggered("a rank recorded no train data set");
  const auto passes = finished_passes(run, "train");
  if (passes.empty()) return not_triggered(kNoPass);
  const auto size = global_size(run, "train");
  if (size == 0) return not_triggered(kNoSize);
  if (size <= run.world_size) return not_applicable("a share of the data is one sample");

  bool exact = true;
  for (const auto& pass : passes) {
    for (std::size_t r = 0; r < sets.size(); ++r) {
      const bool holds_a_part = 4 * sets[r]->size <= 3 * size;
      const auto share = share_drawn(pass.ranks[r], sets[r]->size, run.world_size);
      if (!holds_a_part || share == Share::other) return clean();
      exact = exact && share == Share::exact;
    }
    const auto all = draws(pass);
    // Each rank's padding repeats its own samples, none of another rank's.
    std::int64_t of_ranks = 0;
    for (const auto& rank : pass.ranks)
      of_ranks += static_cast<std::int64_t>(draws(rank).distinct.size());
    const auto seen = static_cast<std::int64_t>(all.distinct.size());
    if (seen != of_ranks || 4 * seen > 3 * size) return clean();
  }
  if (!exact)
    return not_triggered("passes of whole batches, as many as fit into 1/W: they may stop early");
  const auto all = draws(passes.front());
  return found({.pitfall = "sharded-twice",
                .ranks = run.numbers,
                .step = passes.front().step(),
                .evidence = "rank " + std::to_string(run.numbers.front()) + " holds " +
                            of(static_cast<std::size_t>(sets.front()->size), size) +
                            " samples and drew 1/" + std::to_string(run.world_size) +
                            " of those; all ranks together drew " + of(all.distinct.size(), size) +
                            " in a pass"});
}

}  // namespace lockstep::diagnose
