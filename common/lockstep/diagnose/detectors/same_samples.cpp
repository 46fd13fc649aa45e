// Whether a sample is the same numbers on every rank, by what each is given where it draws that sample's position.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/differences.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>

namespace lockstep::diagnose {
namespace {

// A sample as a rank was given it at first.
struct Given {
  std::int64_t hash = 0, step = 0;
  std::size_t pass = 0;
};

struct OfRank {
  std::unordered_map<std::int64_t, Given> samples;  // by position
  std::int64_t again = 0;                           // the same numbers, in a later pass
  bool varies = false;                              // other numbers in a later pass
};

// Pairs each train batch's positions with the hashes that come next, where there are as many.
template <class Hashes>
OfRank given(const trace::ParticipantTrace& rank) {
  const auto drawn = rank.latest<trace::Samples>();
  const auto hashed = rank.latest<Hashes>();
  std::vector<std::int64_t> begins;  // of train passes
  for (const auto& at : rank.latest<trace::PassBegin>())
    if (at.event->phase == "train") begins.push_back(at.time_ns);
  OfRank of;
  std::size_t pass = 0, next = 0;
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const auto& ids = drawn[i].event->ids;
    const auto from = drawn[i].time_ns;
    const auto until = i + 1 < drawn.size() ? drawn[i + 1].time_ns : INT64_MAX;
    while (pass < begins.size() && begins[pass] <= from) ++pass;
    while (next < hashed.size() && hashed[next].time_ns < from) ++next;
    if (drawn[i].event->phase != "train" || next == hashed.size() || hashed[next].time_ns > until ||
        hashed[next].event->hashes.size() != ids.size())
      continue;
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const Given now{hashed[next].event->hashes[k], drawn[i].step, pass};
      const auto [before, is_new] = of.samples.try_emplace(ids[k], now);
      if (is_new || before->second.pass == pass) continue;
      if (before->second.hash != now.hash)
        of.varies = true;
      else
        ++of.again;
    }
  }
  return of;
}

// Of two ranks: the samples that both were given, in different passes.
struct Met {
  std::int64_t in_one_pass = 0, compared = 0, different = 0;
  std::int64_t step = INT64_MAX;  // of the first that differs
};
Met meet(const OfRank& one, const OfRank& other) {
  Met met;
  for (const auto& [id, first] : one.samples) {
    const auto second = other.samples.find(id);
    if (second == other.samples.end()) continue;
    if (first.pass == second->second.pass) {
      ++met.in_one_pass;
      continue;
    }
    ++met.compared;
    if (first.hash == second->second.hash) continue;
    ++met.different;
    met.step = std::min({met.step, first.step, second->second.step});
  }
  return met;
}

// Had samples been augmented, so that as many of them differ by chance, some of those that one rank was given again
// would have differed, too. Ranks that count the samples of their own shares from 0 are given one position in one pass.
bool is_proved(const Met& met, std::int64_t again) {
  constexpr std::int64_t kFew = 4, kChances = 10;
  return met.different >= kFew && met.in_one_pass * 4 <= met.compared &&
         again * met.different >= kChances * met.compared;
}

template <class Hashes>
std::optional<Finding> judge(const Run& run, const std::string& from) {
  std::vector<OfRank> ranks;
  std::int64_t again = 0;
  for (const auto* rank : run.ranks) {
    ranks.push_back(given<Hashes>(*rank));
    if (ranks.back().varies) return std::nullopt;
    again += ranks.back().again;
  }
  std::vector<std::size_t> alike(ranks.size());  // the first rank that holds the same samples
  std::optional<Met> found;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    alike[r] = r;
    for (std::size_t other = 0; other < r; ++other) {
      const auto met = meet(ranks[other], ranks[r]);
      const bool differ = is_proved(met, again);
      if (differ && (!found || met.step < found->step)) found = met;
      if (!differ && met.compared > 0 && met.different == 0)
        alike[r] = std::min(alike[r], alike[other]);
    }
  }
  if (!found) return std::nullopt;
  std::vector<std::string> groups;
  for (const auto rank : alike) groups.push_back(std::to_string(rank));
  return Finding{
      .ranks = odd_ones_out(run.numbers, groups),
      .step = found->step,
      .evidence = std::to_string(found->different) + " of " + plural(found->compared, "sample") +
                  " that two ranks are given in different passes are other numbers on each, as " +
                  from + " gives them; a rank that is given one again gets the same numbers (" +
                  plural(again, "time") + ")"};
}

// Positions of data sets that are known to differ say nothing.
bool count_the_same_data(const Run& run) {
  std::optional<std::uint64_t> first;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->latest<trace::Dataset>())
      if (at.event->phase == "train" &&
          first.value_or(at.event->ids_in_order) != at.event->ids_in_order)
        return false;
      else if (at.event->phase == "train")
        first = at.event->ids_in_order;
  return true;
}

std::vector<Finding> samples_differ(const Run& run) {
  if (run.ranks.size() < 2 || !count_the_same_data(run)) return {};
  auto finding = judge<trace::Contents>(run, "the data loader");
  if (!finding) finding = judge<trace::Rows>(run, "the program");
  return finding ? std::vector{*finding} : std::vector<Finding>{};
}

}  // namespace

std::vector<Detector> same_samples_detectors() {
  return {
      // Needs `samples` of all ranks over two passes or more, and `contents` or `rows`. Rule: a position that one rank
      // draws in one pass and another rank in another pass has other numbers there, for 4 samples or more; and where a
      // rank draws one again it always has the same numbers, often enough (10 times as often as one in how many differ)
      // that augmentation does not explain it. Not fooled by augmentation, nor by ranks that count their own shares from
      // 0; blind where shares stay the same in all passes.
      {.slug = "samples-differ-across-ranks",
       .needs = {"samples"},
       .participants = Participants::ranks,
       .generic = "one sample is other numbers on one rank than on another: a stale file, another "
                  "unit or vocabulary, "
                  "or statistics of the rank's own",
       .accounts_for = {"losses-differ", "inputs-differ"},
       .detect = [](const Run& run) { return among_replicas(run, samples_differ); }},
  };
}

}  // namespace lockstep::diagnose
