// Whether ranks are given each other's samples, by what the samples are.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/differences.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace lockstep::diagnose {
namespace {

constexpr std::int64_t kEnoughShared = 32;  // samples that several ranks were given

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
    if (counts_.empty()) first_ = step;
    auto counts = counts_.empty() ? Counts{} : counts_.back();
    for (std::size_t r = 0; r < fed.size(); ++r)
      for (const auto hash : fed[r]) {
        seen_[r].insert(hash);
        ++counts.total;
        if (++ranks_[hash] == 2) ++counts.shared;
      }
    counts_.push_back(counts);
  }

  // Ranks that draw with replacement meet by chance about as often as they repeat their own, and a stretch ends with
  // the first of those. Where each rank goes on with another's share, samples meet in the second half only.
  bool overlaps() const {
    return steps() > 1 && meets_in(steps() - 1, kEnoughShared) &&
           meets_in(steps() / 2 - 1, kEnoughShared / 4);
  }
  std::int64_t first() const { return first_; }
  std::int64_t steps() const { return static_cast<std::int64_t>(counts_.size()); }
  std::int64_t different() const { return static_cast<std::int64_t>(ranks_.size()); }
  std::int64_t shared() const { return counts_.back().shared; }

  // Each rank's samples are every other rank's.
  bool is_whole() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [&](const auto& hash) { return hash.second == seen_.size(); });
  }

 private:
  struct Counts {
    std::int64_t total = 0, shared = 0;  // given; given to several ranks
  };
  bool meets_in(std::int64_t step, std::int64_t enough) const {
    const auto& counts = counts_[static_cast<std::size_t>(step)];
    return counts.shared >= enough && counts.shared >= counts.total / 20;
  }

  std::vector<std::unordered_set<std::int64_t>> seen_;
  std::unordered_map<std::int64_t, std::size_t> ranks_;  // by sample, how many ranks were given it
  std::int64_t first_ = -1;
  std::vector<Counts> counts_;  // after each step
};

// What a further module is given may be drawn for all ranks, such as negatives beside their own samples.
std::optional<Finding> judge(const Run& run, std::int64_t module, const StretchOfRows& stretch) {
  if (!stretch.overlaps()) return std::nullopt;
  return Finding{
      .severity = stretch.is_whole() && module == 0 ? Severity::violation : Severity::advice,
      .ranks = run.numbers,
      .step = stretch.first(),
      .evidence = (module == 0 ? "" : "of module " + std::to_string(module + 1) + ": ") + "in " +
                  plural(stretch.steps(), "step") + " no rank is given a sample twice, and " +
                  std::to_string(stretch.shared()) + " of " +
                  plural(stretch.different(), "sample") +
                  " are given to more than one rank: the ranks' shares of the data overlap"};
}

std::optional<Finding> overlap(const Run& run, std::int64_t module, const Fed& fed) {
  const auto begins = begins_of(run);
  StretchOfRows stretch(run.ranks.size());
  for (const auto& [step, ranks] : fed) {
    if (begins.count(step) > 0 || stretch.repeats(ranks)) {
      if (auto found = judge(run, module, stretch)) return found;
      stretch = StretchOfRows(run.ranks.size());
      if (stretch.repeats(ranks)) continue;  // in one batch
    }
    stretch.add(step, ranks);
  }
  return judge(run, module, stretch);
}

std::vector<Finding> overlapping_rows(const Run& run) {
  for (const auto& [module, fed] : fed_to_modules(run))
    if (auto found = overlap(run, module, fed)) return {*found};
  return {};
}

}  // namespace

std::vector<Detector> rows_detectors() {
  return {
      // Needs `rows` of all ranks, or `other_rows` of a module beside the recorded model. Rule: in a stretch of two steps or more, in which no rank is given a sample twice,
      // many are given to several ranks: 32, and a twentieth. A violation where each rank's model is given all
      // that the others' are, else advice. Not fooled by later passes, in which shares are dealt anew, by padding, nor by ranks that draw
      // with replacement; blind where samples are augmented, or equal ones are common.
      {.slug = "shares-of-data-overlap",
       .needs = {"rows"},
       .participants = Participants::ranks,
       .generic = "ranks that train one model are given each other's samples",
       .accounts_for = {"same-gradients"},
       .detect = [](const Run& run) { return among_replicas(run, overlapping_rows); }},
  };
}

}  // namespace lockstep::diagnose
