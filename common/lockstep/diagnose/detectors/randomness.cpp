// Pitfalls of random numbers that are drawn for samples: they should be independent, and come from one stream.
#include <lockstep/base/hash.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/differences.h>
#include <lockstep/diagnose/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

namespace lockstep::diagnose {
namespace {
Verdict same_augmentation_everywhere(const Run& run);
Verdict worker_streams_copied(const Run& run);
}  // namespace

// Both need the random numbers drawn for samples.
std::vector<Detector> randomness_detectors() {
  return {
      // Needs those of every rank. Rule: in batches in a row, ranks draw the same numbers for other
      // samples, 16 of them or more. Not fooled by equal seeds of streams that nothing is drawn
      // from, by a sample that two ranks draw alike, nor by one draw that all ranks make for a
      // whole batch.
      {.slug = "same-augmentation-everywhere",
       .equation = Equation::random_numbers,
       .whole = true,
       .needs = {"random_numbers"},
       .participants = Participants::ranks,
       .detect = same_augmentation_everywhere},
      // Rule: a rank's batches of each pass come in rounds of equally many, two or more, in which
      // each batch has the numbers of the round's first; a pass may end inside a round. Not fooled
      // by one draw for a whole batch, by a sample that is drawn again, nor by an epoch that
      // repeats the last one's numbers.
      {.slug = "worker-streams-copied",
       .equation = Equation::random_numbers,
       .needs = {"random_numbers"},
       .fewest = 1,
       .complete = false,
       .detect = worker_streams_copied},
  };
}

namespace {
// So many samples in a row must share their numbers with other samples: a coin that is thrown for each
// falls alike by chance.
constexpr std::int64_t kEnoughInARow = 16;

struct RandomBatch {
  std::int64_t step;
  const trace::RandomNumbers* numbers;
};
using RandomBatches = std::vector<RandomBatch>;

bool is_complete(const trace::RandomNumbers& batch) {
  return !batch.hashes.empty() && batch.hashes.size() == batch.ids.size();
}

RandomBatches random_batches_of(const trace::ParticipantTrace& rank) {
  RandomBatches batches;
  for (const auto& at : rank.all<trace::RandomNumbers>())
    if (is_complete(*at.event)) batches.push_back({at.step, at.event});
  return batches;
}

// One draw for a whole batch is a choice; it says nothing about the stream it came from.
bool is_varied(const trace::RandomNumbers& batch) {
  return std::set(batch.hashes.begin(), batch.hashes.end()).size() > 1;
}

// Samples that share their numbers with another one, place by place; nothing where any place differs.
// A sample that comes twice has its numbers twice. A shorter batch is compared as far as it goes.
std::int64_t shared_draws(const RandomBatch& of_a, const RandomBatch& of_b) {
  const auto& a = *of_a.numbers;
  const auto& b = *of_b.numbers;
  std::int64_t others = 0;
  for (std::size_t i = 0; i < std::min(a.ids.size(), b.ids.size()); ++i) {
    if (a.hashes[i] != b.hashes[i]) return 0;
    others += a.ids[i] != b.ids[i];
  }
  return is_varied(a) && is_varied(b) ? others : 0;
}

// In batches in a row, the most; and the step of the first of them.
struct Shared {
  std::int64_t samples = 0;
  std::int64_t step = -1;
};
Shared shared_in_a_row(const RandomBatches& a, const RandomBatches& b) {
  Shared now, most;
  for (std::size_t k = 0; k < std::min(a.size(), b.size()); ++k) {
    const auto of_batch = shared_draws(a[k], b[k]);
    if (of_batch == 0) now = {};
    if (of_batch > 0 && now.samples == 0) now.step = a[k].step;
    now.samples += of_batch;
    if (now.samples > most.samples) most = now;
  }
  return most;
}

// The ranks that begin some batch with the numbers of another rank, as far as the shortest there goes: no
// others need be compared, pair by pair.
std::vector<std::size_t> may_share(const std::vector<RandomBatches>& ranks) {
  std::size_t most = 0;
  for (const auto& batches : ranks) most = std::max(most, batches.size());
  std::set<std::size_t> sharing;
  for (std::size_t k = 0; k < most; ++k) {
    auto length = static_cast<std::size_t>(kEnoughInARow);
    for (const auto& batches : ranks)
      if (k < batches.size()) length = std::min(length, batches[k].numbers->hashes.size());
    std::vector<std::pair<std::uint64_t, std::size_t>> begins;
    for (std::size_t r = 0; r < ranks.size(); ++r)
      if (k < ranks[r].size())
        begins.emplace_back(
            hash_bytes(ranks[r][k].numbers->hashes.data(), length * sizeof(std::uint64_t)), r);
    std::sort(begins.begin(), begins.end());
    for (std::size_t i = 1; i < begins.size(); ++i)
      if (begins[i].first == begins[i - 1].first)
        sharing.insert({begins[i - 1].second, begins[i].second});
  }
  return {sharing.begin(), sharing.end()};
}

// The same batches, pass by pass: workers begin a new round with each.
std::vector<RandomBatches> random_batches_of_passes(const trace::ParticipantTrace& rank) {
  std::vector<RandomBatches> passes(1);
  for (const auto& event : rank.events) {
    if (event.is<trace::PassBegin>()) passes.emplace_back();
    const auto* numbers = event.as<trace::RandomNumbers>();
    if (numbers != nullptr && is_complete(*numbers)) passes.back().push_back({event.step, numbers});
  }
  std::erase_if(passes, [](const RandomBatches& batches) { return batches.empty(); });
  return passes;
}

// How many batches in a row begin with the same numbers, in rounds of equally many to the end of every pass,
// whose last round may be shorter; 1 = no such rounds.
std::size_t round_length(const std::vector<RandomBatches>& passes, std::int64_t* shared,
                         std::int64_t* step) {
  std::size_t length = 1;
  for (const auto& batches : passes) {
    std::size_t first_round = 1;
    while (first_round < batches.size() && shared_draws(batches[0], batches[first_round]) > 0)
      ++first_round;
    length = std::max(length, first_round);
  }
  for (const auto& batches : passes)
    for (std::size_t k = 0; k < batches.size(); ++k) {
      if (k % length == 0) continue;
      const auto of_batch = shared_draws(batches[k - k % length], batches[k]);
      if (of_batch == 0) return 1;
      if (*shared == 0) *step = batches[k].step;
      *shared += of_batch;
    }
  return length;
}

const char* const kNoNumbers = "a rank recorded no random numbers drawn for samples";

Verdict same_augmentation_everywhere(const Run& run) {
  std::vector<RandomBatches> ranks;
  for (const auto* rank : run.ranks) {
    ranks.push_back(random_batches_of(*rank));
    if (ranks.back().empty()) return not_triggered(kNoNumbers);
  }
  // The first rank whose numbers another draws too, and all that do.
  const auto candidates = may_share(ranks);
  for (std::size_t at = 0; at < candidates.size(); ++at) {
    const auto first = candidates[at];
    std::vector<int> alike{run.numbers[first]};
    Shared shared;
    for (std::size_t other = at + 1; other < candidates.size(); ++other) {
      const auto r = candidates[other];
      const auto with_r = shared_in_a_row(ranks[first], ranks[r]);
      if (with_r.samples < kEnoughInARow) continue;
      if (alike.size() == 1 || with_r.samples < shared.samples) shared = with_r;
      alike.push_back(run.numbers[r]);
    }
    if (alike.size() < 2) continue;
    return found(
        {.ranks = alike,
         .step = shared.step,
         .evidence = fmt::format(
             "{} drew the same random numbers for {} in a row, which are other samples on each",
             lockstep::ranks_text(alike), plural(shared.samples, "sample"))});
  }
  return clean();
}

Verdict worker_streams_copied(const Run& run) {
  std::vector<int> at_fault;
  std::size_t workers = 0, repeats = 0;
  std::int64_t step = -1;
  bool any = false;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto passes = random_batches_of_passes(*run.ranks[r]);
    any = any || std::any_of(passes.begin(), passes.end(),
                             [](const RandomBatches& batches) { return batches.size() > 1; });
    std::int64_t shared = 0, repeated_at = -1;
    const auto length = round_length(passes, &shared, &repeated_at);
    if (length < 2 || shared < kEnoughInARow) continue;
    if (at_fault.empty()) step = repeated_at;
    at_fault.push_back(run.numbers[r]);
    workers = std::max(workers, length);
    repeats = std::max(repeats, static_cast<std::size_t>(shared));
  }
  if (!any) return not_triggered("no rank recorded random numbers drawn for two batches of a pass");
  if (at_fault.empty()) return clean();
  return found({.ranks = at_fault,
                .step = step,
                .evidence = fmt::format(
                    "the same random numbers are drawn for {} batches one after another, all "
                    "through the run; {} of a rank got numbers that another sample had",
                    workers, plural(static_cast<std::int64_t>(repeats), "sample"))});
}

}  // namespace
}  // namespace lockstep::diagnose
