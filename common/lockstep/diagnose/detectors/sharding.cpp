// Pitfalls of sharding: split by nobody, twice, or otherwise on every rank.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/passes.h>

#include <algorithm>
#include <set>

namespace lockstep::diagnose {
namespace {
Verdict no_sharding(const Run& run);
Verdict stream_not_sharded(const Run& run);
Verdict sharded_twice(const Run& run);
Verdict shards_overlap(const Run& run);
}  // namespace

std::vector<Detector> sharding_detectors() {
  return {
      // Needs samples of ranks that train together (a collective after training began, or an
      // engine). Rule: in a pass, all ranks draw the same ids, more than a share of N/W, each once;
      // or all of them the same share. Not fooled by evaluation on all ranks, by ranks that
      // draw at random with replacement, nor by equal ids in different data sets.
      {.slug = "no-sharding",
       .equation = Equation::own_samples,
       .whole = true,
       .needs = {"dataset", "pass_begin", "samples", "pass_end"},
       .accounts_for = {"same-gradients", "same-inputs", "shares-of-data-overlap"},
       .detect = no_sharding},
      // Rule: within a pass each rank draws each of its ids equally often, more than once; and all
      // ranks draw the same ids and train together, or the repeats come as whole batches next to
      // each other (workers of one loader). Not fooled by drawing with replacement, where ids
      // repeat unequally, nor by a batch or a few trained again and again: of each rank's batches
      // more must differ than an id has repeats. Every batch repeated on purpose looks the same and
      // is named. Or, where ids are hashes of content: all ranks draw the same, of which most come
      // once. Not fooled by data of a few values; where augmentation hides it, not_triggered.
      {.slug = "stream-not-sharded",
       .equation = Equation::own_samples,
       .whole = true,
       .needs = {"pass_begin", "samples", "pass_end"},
       .fewest = 1,
       .accounts_for = {"same-gradients", "same-inputs", "shares-of-data-overlap"},
       .detect = stream_not_sharded},
      // Rule: each rank holds only a part of the data set and draws exactly 1/W of that part in
      // every pass, rounded up or down, no id on two ranks; or each holds a data set of its own, and
      // draws 1/W of that. Not fooled by ranks that draw all of their own part, nor by passes that
      // stop early, unless at exactly 1/W. As many whole batches as fit into 1/W may be either
      // (drop_last): not_triggered. Advice where each rank can reach all samples, and draws exactly
      // 1/W of its share in every pass, the last batch smaller than the others.
      {.slug = "sharded-twice",
       .equation = Equation::own_samples,
       .needs = {"dataset", "pass_begin", "samples", "pass_end"},
       .detect = sharded_twice},
      // Needs samples and the size of the data set, of ranks that train together. Rule: in a pass
      // each rank draws a share of the train data, no sample twice, in the same epoch and from an
      // equally indexed set; together they draw W samples or more again, though others were not
      // drawn. Advice: that each rank shuffles for itself may be a choice. Not fooled by ranks that
      // draw with repeats in any pass, or another number of samples. Of a stream, whose size is not
      // known: no rank draws a sample twice, and several ranks draw a twentieth of them.
      {.slug = "shards-overlap",
       .equation = Equation::own_samples,
       .needs = {"dataset", "pass_begin", "samples", "pass_end"},
       .accounts_for = {"shares-of-data-overlap"},
       .detect = shards_overlap},
  };
}

namespace {
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

// Whether the ranks' data sets are one, by such a hash of their ids, as far as they recorded it.
bool have_one_set(const Run& run, std::uint64_t trace::Dataset::*hash) {
  const auto sets = train_sets(run);
  return std::all_of(sets.begin(), sets.end(),
                     [&](const auto* set) { return set->*hash == sets.front()->*hash; });
}

// Whether `judge` says so of what each rank drew; ranks behind one of which it does not are not counted.
template <class Judge>
bool all_drew(const Pass& pass, Judge judge) {
  return std::all_of(pass.ranks.begin(), pass.ranks.end(),
                     [&](const RankPass& rank) { return judge(draws(rank)); });
}

// No rank drew an id twice. Where none came twice on all ranks together, none need be counted by itself.
bool none_repeats(const Pass& pass) {
  return pass.drawn.most <= 1 || all_drew(pass, [](const Draws& drawn) { return drawn.most <= 1; });
}

// The batches come in rounds of `workers` equal ones.
bool in_equal_rounds(const RankPass& pass, std::int64_t workers) {
  const auto round = static_cast<std::size_t>(workers);
  if (pass.batches.empty() || pass.batches.size() % round != 0) return false;
  for (std::size_t b = 0; b < pass.batches.size(); ++b)
    if (!is_same(pass.batches[b], pass.batches[b - b % round])) return false;
  return true;
}

// Each rank draws its share, no id of it twice, in an order that was settled before the pass began, and in the
// same epoch as the others.
bool draws_whole_shares(const Pass& pass, std::int64_t size) {
  const auto epoch = pass.ranks.front().epoch_at_first_batch();
  std::int64_t total = 0;
  for (const auto& rank : pass.ranks) {
    if (rank.epoch_at_first_batch() != epoch || !rank.calls.empty()) return false;
    total += rank.total();
  }
  const auto padding =
      static_cast<std::int64_t>(pass.ranks.size());  // or what is cut: fewer than this
  return total < size + padding && size < total + padding && none_repeats(pass);
}

Verdict no_sharding(const Run& run) {
  const auto& passes = finished_passes(run, "train");
  if (passes.empty()) return not_triggered(kNoTrainPass);
  const auto size = global_size(run, "train");
  if (size == 0) return not_triggered(kNoDatasetSize);
  const auto share = ceil_div(size, run.world_size);
  if (share >= size) return not_applicable("a share of the data is all of it");
  if (!train_together(run)) return not_triggered("no sign that these ranks train together");
  if (!have_one_set(run, &trace::Dataset::ids_as_set))
    return not_triggered("the ranks' data sets differ: the same ids may be of other samples");
  for (const auto& pass : passes) {
    const auto first = draws(pass.ranks.front());
    // More than a share each; or one share, which all of them drew instead of one each.
    const bool more = first.different > share;
    if (!more && (!draws_whole_shares(pass, size) || size < 2 * run.world_size)) continue;
    if (!all_drew(pass, [&](const Draws& drawn) { return drawn == first && drawn.most <= 1; }))
      continue;
    return found(
        {.ranks = run.numbers,
         .step = pass.step(),
         .evidence = fmt::format("every rank drew the same {} samples in one pass; a share is {}",
                                 of(first.different, size), share)});
  }
  return clean();
}

// Batches of different samples, whatever their order.
std::int64_t different_batches(const RankPass& pass) {
  std::set<std::vector<std::int64_t>> different;
  for (const auto& batch : pass.batches) {
    std::vector<std::int64_t> ids(batch.begin(), batch.end());
    std::sort(ids.begin(), ids.end());
    different.insert(std::move(ids));
  }
  return static_cast<std::int64_t>(different.size());
}

constexpr std::int64_t kEnoughContents = 16;

// Every rank drew the same samples of a stream, of which most come once: by chance two shares are not equal. Not so
// where they hold a few values again and again. `first`: what the first rank drew.
bool is_whole_on_all(const Pass& pass, const Draws& first) {
  return pass.ranks.size() > 1 && pass.by_content && first.different >= kEnoughContents &&
         2 * first.different > first.total && different_batches(pass.ranks.front()) > 1 &&
         all_drew(pass,
                  [&](const Draws& drawn) { return drawn == first && drawn.total == first.total; });
}

Verdict stream_not_sharded(const Run& run) {
  const auto& passes = finished_passes(run, "train");
  if (passes.empty()) return not_triggered(kNoTrainPass);
  const bool together = train_together(run);
  const bool same_set = have_one_set(run, &trace::Dataset::ids_as_set);
  bool by_content = false;
  for (const auto& pass : passes) {
    by_content = by_content || pass.by_content;
    const auto first = draws(pass.ranks.front());
    if (together && is_whole_on_all(pass, first))
      return found({.ranks = run.numbers,
                    .step = pass.step(),
                    .evidence = fmt::format("in one pass every rank drew the same {} of a stream",
                                            plural(first.total, "sample"))});
    const auto times = first.most;
    if (times < 2) continue;
    bool equal = true, rounds = true, few = false;
    const bool all_repeat = all_drew(pass, [&](const Draws& drawn) {
      equal = equal && drawn == first;
      return drawn.least == times && drawn.most == times;
    });
    if (!all_repeat) continue;
    // One batch, or a few, trained again and again are a check that the model can learn at all.
    for (const auto& rank : pass.ranks) {
      rounds = rounds && in_equal_rounds(rank, times);
      few = few || different_batches(rank) <= times;
    }
    const bool same_on_all = pass.ranks.size() > 1 && equal && together && same_set;
    if (few || !(same_on_all || rounds)) continue;
    const auto& all = pass.drawn;
    return found({.ranks = run.numbers,
                  .step = pass.step(),
                  .evidence = fmt::format(
                      "in one pass each rank drew each of its ids {} times; {} for {}", times,
                      plural(all.total, "draw"), plural(all.different, "sample"))});
  }
  return by_content ? not_triggered(
                          "the samples of a stream are known by their content, which may "
                          "be augmented")
                    : clean();
}

// What a rank drew of the part that it holds: exactly 1/W of it, as a sampler deals, rounded up
// (padded) or down (cut); as many whole batches as fit into that; or something else.
enum class Share { exact, whole_batches, other };

Share share_drawn(const RankPass& pass, std::int64_t held, std::int64_t world_size) {
  const auto drawn = pass.total();
  const auto padded = ceil_div(held, world_size), cut = held / world_size;
  if (drawn == 0) return Share::other;
  if (drawn == padded || drawn == cut) return Share::exact;
  const auto batch = static_cast<std::int64_t>(pass.batches.front().size());
  for (const auto& ids : pass.batches)
    if (static_cast<std::int64_t>(ids.size()) != batch) return Share::other;
  return drawn == padded / batch * batch || drawn == cut / batch * batch ? Share::whole_batches
                                                                         : Share::other;
}

// In every pass each rank drew exactly 1/W of its share of a data set that all of it can reach, none of another
// rank's: somebody had split them already, and the sampler did again. One that ends with a smaller batch has no more
// samples; one of whole batches may have been told to stop there: it takes two, of a data set that W x W shares leave
// no rest of.
bool draws_a_share_of_its_share(const Run& run, const std::vector<Pass>& passes,
                                std::int64_t size) {
  const std::int64_t w = run.world_size;
  const std::set<std::int64_t> shares{ceil_div(ceil_div(size, w), w), ceil_div(size / w, w),
                                      ceil_div(size, w) / w, size / w / w};
  return size >= 4 * w * w && std::all_of(passes.begin(), passes.end(), [&](const Pass& pass) {
           const auto is_one = [&](const RankPass& rank) {
             if (rank.batches.empty()) return false;
             const bool ran_out = rank.batches.back().size() < rank.batches.front().size();
             const bool fits = size % (w * w) == 0 && passes.size() > 1;
             return shares.count(rank.total()) > 0 && (ran_out || fits);
           };
           return pass.drawn.most == 1 && std::all_of(pass.ranks.begin(), pass.ranks.end(), is_one);
         });
}

bool reach_all(const std::vector<const trace::Dataset*>& sets, std::int64_t size) {
  return std::all_of(sets.begin(), sets.end(), [&](const auto* set) { return set->size == size; });
}

// No rank's data are another's, by what their samples are, and each takes its own for the whole.
bool hold_their_own(const std::vector<const trace::Dataset*>& sets) {
  std::set<std::uint64_t> different;
  for (const auto* set : sets) different.insert(set->ids_as_set);
  return different.size() == sets.size() && sets.size() > 1 &&
         std::all_of(sets.begin(), sets.end(), [](const auto* set) {
           return set->size == set->global_size && set->ids_as_set != 0 && set->content_as_set != 0;
         });
}

// In every pass each rank drew exactly 1/W of what it holds.
bool draw_a_share_of_their_own(const Run& run, const std::vector<Pass>& passes,
                               const std::vector<const trace::Dataset*>& sets) {
  return std::all_of(passes.begin(), passes.end(), [&](const Pass& pass) {
    for (std::size_t r = 0; r < sets.size(); ++r)
      if (sets[r]->size < 2 * run.world_size ||
          share_drawn(pass.ranks[r], sets[r]->size, run.world_size) != Share::exact)
        return false;
    return true;
  });
}

Verdict sharded_twice(const Run& run) {
  const auto sets = train_sets(run);
  if (sets.empty()) return not_triggered("a rank recorded no train data set");
  const auto& passes = finished_passes(run, "train");
  if (passes.empty()) return not_triggered(kNoTrainPass);
  const auto size = global_size(run, "train");
  if (size == 0) return not_triggered(kNoDatasetSize);
  if (size <= run.world_size) return not_applicable("a share of the data is one sample");

  if (reach_all(sets, size) && train_together(run) && draws_a_share_of_its_share(run, passes, size))
    return found(
        {.severity = Severity::advice,
         .ranks = run.numbers,
         .step = passes.front().step(),
         .evidence = fmt::format("each rank can reach all samples and drew {} in every pass, 1/{} "
                                 "of its share, all ranks together {}",
                                 of(passes.front().ranks.front().total(), size), run.world_size,
                                 of(passes.front().drawn.different, size))});
  if (hold_their_own(sets) && train_together(run) && draw_a_share_of_their_own(run, passes, sets))
    return found(
        {.ranks = run.numbers,
         .step = passes.front().step(),
         .evidence = fmt::format(
             "each rank holds other data than the others, and drew 1/{} of them: rank {} drew {}",
             run.world_size, run.numbers.front(),
             of(passes.front().ranks.front().total(), sets.front()->size))});
  bool exact = true;
  for (const auto& pass : passes) {
    for (std::size_t r = 0; r < sets.size(); ++r) {
      const bool holds_a_part = 4 * sets[r]->size <= 3 * size;
      const auto share = share_drawn(pass.ranks[r], sets[r]->size, run.world_size);
      if (!holds_a_part || share == Share::other) return clean();
      exact = exact && share == Share::exact;
    }
    const auto& all = pass.drawn;
    // Each rank's padding repeats its own samples, none of another rank's.
    std::int64_t of_ranks = 0;
    for (const auto& rank : pass.ranks) of_ranks += draws(rank).different;
    const auto seen = all.different;
    if (seen != of_ranks || 4 * seen > 3 * size) return clean();
  }
  if (!exact)
    return not_triggered("passes of whole batches, as many as fit into 1/W: they may stop early");
  const auto& all = passes.front().drawn;
  return found(
      {.ranks = run.numbers,
       .step = passes.front().step(),
       .evidence = fmt::format(
           "rank {} holds {} samples and drew 1/{} of those; all ranks together drew {} in a pass",
           run.numbers.front(), of(sets.front()->size, size), run.world_size,
           of(all.different, size))});
}

constexpr std::int64_t kEnoughToTellRepeats = 32;

// The first pass over a stream, whose size nobody knows, in which no rank drew a sample twice and many were drawn by
// several ranks. Where content repeats by itself, it does within a rank, too.
const Pass* overlap_of_a_stream(const std::vector<Pass>& passes) {
  for (const auto& pass : passes) {
    if (!pass.by_content || !none_repeats(pass)) return nullptr;
    const auto first = draws(pass.ranks.front());
    if (all_drew(pass, [&](const Draws& drawn) { return drawn == first; })) continue;
    const auto& all = pass.drawn;
    if (all.again() >= std::max<std::int64_t>(kEnoughContents, all.total / 20)) return &pass;
  }
  return nullptr;
}

Finding overlap_in(const Run& run, const Pass& pass, const std::string& drawn) {
  return {
      .severity = Severity::advice,
      .ranks = run.numbers,
      .step = pass.step(),
      .evidence = fmt::format("the ranks drew a share each, of one data set in one epoch, and {} "
                              "in {}: they do not split it alike (each with a seed of its own?)",
                              drawn, plural(pass.drawn.total, "draw"))};
}

Verdict shards_overlap(const Run& run) {
  const auto& passes = finished_passes(run, "train");
  if (passes.empty()) return not_triggered(kNoTrainPass);
  const auto size = global_size(run, "train");
  if (size == 0) {
    const auto* pass = train_together(run) ? overlap_of_a_stream(passes) : nullptr;
    if (pass == nullptr) return not_triggered(kNoDatasetSize);
    return found(overlap_in(run, *pass, plural(pass->drawn.different, "different sample")));
  }
  if (size < 2 * run.world_size) return not_applicable("a share is less than two samples");
  if (!train_together(run)) return not_triggered("no sign that these ranks train together");
  if (!have_one_set(run, &trace::Dataset::ids_in_order)) return clean();
  // By chance a rank that draws with repeats has none in a short pass.
  if (size / run.world_size * static_cast<std::int64_t>(passes.size()) < kEnoughToTellRepeats)
    return not_triggered("too few samples to tell a share from a draw with repeats");
  const Pass* told = nullptr;
  for (const auto& pass : passes) {
    if (!none_repeats(pass)) return clean();
    const auto first = draws(pass.ranks.front());
    const bool all_the_same = all_drew(pass, [&](const Draws& drawn) { return drawn == first; });
    const auto& all = pass.drawn;
    const auto again = all.again();
    if (!told && !all_the_same && draws_whole_shares(pass, size) &&
        has_overlaps_and_gaps(all, size) &&
        again >= run.world_size)  // fewer are a sampler's padding
      told = &pass;
  }
  if (!told) return clean();
  return found(overlap_in(run, *told, of(told->drawn.different, size) + " samples"));
}

}  // namespace
}  // namespace lockstep::diagnose
