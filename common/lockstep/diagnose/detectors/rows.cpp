// Whether ranks are given each other's samples, by what the samples are.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/differences.h>
#include <lockstep/diagnose/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace lockstep::diagnose {
namespace {
std::vector<Finding> overlapping_rows(const Run& run);
}  // namespace

std::vector<Detector> rows_detectors() {
  return {
      // Needs `rows` of all ranks, or `other_rows` of a module beside the recorded model. Rule: in stretches of steps
      // in which no rank is given a sample twice, taken together, many samples are given to several ranks: 8 for each
      // rank, a fiftieth of all, and, where not all are shared, four times as many as ranks share that draw with
      // replacement. How many these share is known from how often a rank repeats a sample. A violation where each
      // rank's model is given all that the others' are, else advice. Not fooled by later passes, in which shares are
      // dealt anew, nor by padding; blind where samples are augmented, or equal ones are common.
      {.slug = "shares-of-data-overlap",
       .equation = Equation::own_samples,
       .whole = true,
       .needs = {"rows"},
       .participants = Participants::ranks,
       .accounts_for = {"same-gradients"},
       .detect = [](const Run& run) { return among_replicas(run, overlapping_rows); }},
  };
}

namespace {
// A shared sample was given to several ranks. So many of them are enough, for each rank of the job:
constexpr std::int64_t kEnoughARank = 8;
// A rank that draws at random shares samples with each other rank as often as it repeats its own.
constexpr std::int64_t kOftenerThanByChance = 4;  // times as often
constexpr std::int64_t kLeastShare = 50;          // at least one sample of so many is shared

// What each rank's forwards were given in one step.
using Fed = std::map<std::int64_t, std::vector<std::vector<std::int64_t>>>;

// Since an engine took the model over: each rank may have trained another one for itself before.
std::int64_t begin_of_model(const trace::ParticipantTrace& rank) {
  const auto engines = rank.latest<trace::Engine>();
  return engines.empty() ? 0 : engines.back().time_ns;
}

void add(const trace::Ids& hashes, std::size_t r, const Run& run,
         std::vector<std::vector<std::int64_t>>& ranks) {
  ranks.resize(run.ranks.size());
  ranks[r].insert(ranks[r].end(), hashes.begin(), hashes.end());
}

// What each module was given, by its number; the recorded model is 0.
std::map<std::int64_t, Fed> fed_to_modules(const Run& run) {
  std::map<std::int64_t, Fed> fed;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto since = begin_of_model(*run.ranks[r]);
    for (const auto& at : run.ranks[r]->latest<trace::Rows>())
      if (at.time_ns >= since) add(at.event->hashes, r, run, fed[0][at.step]);
    for (const auto& at : run.ranks[r]->latest<trace::OtherRows>())
      if (at.time_ns >= since) add(at.event->hashes, r, run, fed[at.event->module][at.step]);
  }
  // A critic is given what was generated for its own update and once more for the generator's.
  for (auto& [module, steps] : fed)
    for (auto& [step, ranks] : steps)
      for (auto& rank : ranks) {
        if (module == 0) continue;
        std::sort(rank.begin(), rank.end());
        rank.erase(std::unique(rank.begin(), rank.end()), rank.end());
      }
  return fed;
}

// Steps in which a rank begins a pass over its data, as far as it told.
std::unordered_set<std::int64_t> begins_of(const Run& run) {
  std::unordered_set<std::int64_t> begins;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->latest<trace::PassBegin>())
      if (at.event->phase == "train") begins.insert(at.step);
  return begins;
}

// A stretch of steps in which no rank was given one of its samples twice.
class StretchOfRows {
 public:
  explicit StretchOfRows(std::size_t ranks) : seen_(ranks) {}

  bool repeats(const std::vector<std::vector<std::int64_t>>& fed) const {
    for (std::size_t r = 0; r < fed.size(); ++r) {
      std::unordered_set<std::int64_t> here;
      for (const auto hash : fed[r])
        if (seen_[r].count(hash) > 0 || !here.insert(hash).second) return true;
    }
    return false;
  }
  void add(std::int64_t step, const std::vector<std::vector<std::int64_t>>& fed) {
    if (shared_.empty()) first_ = step;
    auto shared = shared_.empty() ? 0 : shared_.back();
    for (std::size_t r = 0; r < fed.size(); ++r)
      for (const auto hash : fed[r]) {
        seen_[r].insert(hash);
        shared += ++ranks_[hash] == 2 ? 1 : 0;
      }
    shared_.push_back(shared);
  }

  // Samples that were given to several ranks. 0 where nearly all of them come in the second half: there each rank may
  // go on with another's share, or be given samples that pad its own.
  std::int64_t shared() const {
    const auto half = shared_.size() / 2;
    return half > 0 && 8 * shared_[half - 1] >= shared_.back() ? shared_.back() : 0;
  }
  std::int64_t first() const { return first_; }
  std::int64_t steps() const { return static_cast<std::int64_t>(shared_.size()); }
  std::int64_t different() const { return static_cast<std::int64_t>(ranks_.size()); }

  // Each rank's samples are every other rank's.
  bool is_whole() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [&](const auto& hash) { return hash.second == seen_.size(); });
  }

 private:
  std::vector<std::unordered_set<std::int64_t>> seen_;
  std::unordered_map<std::int64_t, std::size_t> ranks_;  // by sample, how many ranks were given it
  std::int64_t first_ = -1;
  std::vector<std::int64_t> shared_;  // after each step, samples that were given to several ranks
};

// What all stretches so far say together.
class Stretches {
 public:
  void add(const StretchOfRows& stretch, bool ended_by_repeating) {
    repeats_ += ended_by_repeating ? 1 : 0;
    steps_ += stretch.steps();
    different_ += stretch.different();
    const auto shared = stretch.shared();
    if (shared == 0) return;
    if (shared_ == 0) first_ = stretch.first();
    shared_ += shared;
    whole_ = whole_ && stretch.is_whole();
  }

  // What a further module is given may be drawn for all ranks, such as negatives beside their own samples.
  std::optional<Finding> judge(const Run& run, std::int64_t module) const {
    const auto ranks = static_cast<std::int64_t>(run.ranks.size());
    const auto by_chance = whole_ ? 0 : (ranks - 1) * repeats_;  // never all of them
    if (shared_ < kEnoughARank * ranks || shared_ < kOftenerThanByChance * by_chance ||
        shared_ < different_ / kLeastShare)
      return std::nullopt;
    return Finding{.severity = whole_ && module == 0 ? Severity::violation : Severity::advice,
                   .ranks = run.numbers,
                   .step = first_,
                   .evidence = fmt::format(
                       "{}{} of {} are given to more than one rank before any rank is given one of "
                       "its own twice, in {}: the ranks' shares of the data overlap",
                       module == 0 ? "" : fmt::format("of module {}: ", module + 1), shared_,
                       plural(different_, "sample"), plural(steps_, "step"))};
  }

 private:
  std::int64_t first_ = -1;  // step of the first in which ranks meet
  std::int64_t steps_ = 0, different_ = 0, shared_ = 0;
  std::int64_t repeats_ = 0;  // how many ended because a rank was given one of its samples twice
  bool whole_ = true;         // all in which ranks meet
};

std::optional<Finding> overlap(const Run& run, std::int64_t module, const Fed& fed) {
  const auto begins = begins_of(run);
  Stretches stretches;
  StretchOfRows stretch(run.ranks.size());
  for (const auto& [step, ranks] : fed) {
    const bool begins_pass = begins.count(step) > 0;
    if (begins_pass || stretch.repeats(ranks)) {
      stretches.add(stretch, !begins_pass);
      if (auto found = stretches.judge(run, module)) return found;
      stretch = StretchOfRows(run.ranks.size());
      if (stretch.repeats(ranks)) continue;  // in one batch
    }
    stretch.add(step, ranks);
  }
  stretches.add(stretch, false);
  return stretches.judge(run, module);
}

std::vector<Finding> overlapping_rows(const Run& run) {
  for (const auto& [module, fed] : fed_to_modules(run))
    if (auto found = overlap(run, module, fed)) return {*found};
  return {};
}

}  // namespace
}  // namespace lockstep::diagnose
