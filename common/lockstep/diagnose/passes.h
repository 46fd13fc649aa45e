// Which samples each rank drew in which pass over the data.
#pragma once

#include <lockstep/diagnose/evidence.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::diagnose {

struct EpochCall {
  std::int64_t epoch = 0;
  std::size_t batches_before = 0;  // drawn in this pass when set_epoch was called
};
using Batch = std::span<const std::int64_t>;  // ids in the order drawn, in the trace
bool is_same(Batch a, Batch b);

struct RankPass {
  std::int64_t step = -1;    // when the pass began
  std::int64_t attempt = 0;  // of the job, in which it began
  std::int64_t epoch = 0;    // as the program counts
  bool ended = false;
  std::vector<Batch> batches;
  std::optional<std::int64_t> epoch_before;   // last one told before the pass began
  std::vector<EpochCall> calls;               // set_epoch inside the pass
  std::vector<const trace::Metric*> metrics;  // of the phase, recorded before its next pass began

  std::vector<std::int64_t> order() const;  // all ids as drawn
  std::int64_t total() const;               // how many those are
  // The epoch in force when the first batch was drawn.
  std::optional<std::int64_t> epoch_at_first_batch() const;
};
// How often ids were drawn.
struct DrawCounts {
  std::int64_t total = 0;
  std::int64_t different = 0;        // ids
  std::int64_t least = 0, most = 0;  // times one of them was drawn
  std::int64_t again() const { return total - different; }
};
struct Pass {
  std::vector<RankPass> ranks;  // as Run::ranks
  DrawCounts drawn;             // by all of them
  // Samples of a stream have no positions. Their ids are hashes of their content, less than 0: what augmentation
  // changes is another sample, and two that are equal are one.
  bool by_content = false;
  std::int64_t step() const { return ranks.front().step; }
};

// Every rank drew the same ids in the same order in both, or in each of them.
bool is_same_order(const Pass& one, const Pass& other);
bool all_in_one_order(std::span<const Pass> passes);

// Every rank's first train data set, as Run::ranks; empty when a rank recorded none.
std::vector<const trace::Dataset*> train_sets(const Run& run);

// A rank's passes of one phase, the last of which may not have ended.
std::vector<RankPass> passes_of(const trace::ParticipantTrace& rank, const std::string& phase);

// Of "train" or "evaluation": the k-th passes of all ranks in an attempt side by side, for those that every
// rank began and ended. Of a set_epoch inside a pass of another phase nothing is kept.
const std::vector<Pass>& finished_passes(const Run& run, const std::string& phase);

// Why passes tell nothing, for not_triggered().
inline constexpr const char* kNoTrainPass = "no train pass that every rank began and finished";
inline constexpr const char* kNoDatasetSize = "the size of the data set was not recorded";

// How often which ids were drawn.
struct Draws : DrawCounts {
  std::vector<std::int64_t> distinct;  // ascending
  bool operator==(const Draws& other) const { return distinct == other.distinct; }
};
Draws draws(const std::vector<std::int64_t>& ids);
Draws draws(const RankPass& pass);
Draws draws(const Pass& pass);  // of all ranks
// How many ids are in both.
std::int64_t in_both(const Draws& a, const Draws& b);

// "3 of 12", for the evidence.
std::string of(std::int64_t part, std::int64_t whole);

// Some ids were drawn again though others were not drawn yet. Repeats of a sampler that pads, and
// ids left out by one that cuts, are not that.
bool has_overlaps_and_gaps(const DrawCounts& all, std::int64_t global_size);

}  // namespace lockstep::diagnose
