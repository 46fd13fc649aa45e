// Whether a sample is the same numbers on every rank, by what each is given where it draws that sample's position.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

namespace lockstep::diagnose {
namespace {
Verdict samples_differ(const Run& run);
}  // namespace

std::vector<Detector> same_samples_detectors() {
  return {
      // Advice. Needs `contents`, or `samples` and `rows`, of all ranks over two passes or more. Rule: a position that
      // one rank draws in one pass and another rank in another pass has other numbers there, for 4 samples or more; and
      // where a rank draws one again it always has the same numbers, often enough (10 times as often as one in how many
      // differ) that augmentation does not explain it. Not fooled by augmentation, nor by ranks that count their own
      // shares from 0. Numbers that each rank draws once and keeps, and kernels that round otherwise on another
      // processor, look the same. Blind where shares stay the same in all passes.
      {.slug = "samples-differ-across-ranks",
       .equation = Equation::own_samples,
       .needs = {"samples"},
       .participants = Participants::ranks,
       .accounts_for = {"losses-differ", "inputs-differ"},
       .detect = samples_differ},
  };
}

namespace {
// A sample as a rank was given it at first.
struct Given {
  std::int64_t hash = 0, step = 0;
  std::size_t pass = 0;
};

struct OfRank {
  std::int64_t one_of = 1;  // so many positions is kept: with many ranks, some are enough
  std::unordered_map<std::int64_t, Given> samples;  // by position
  std::int64_t again = 0;                           // the same numbers, in a later pass
  bool varies = false;                              // other numbers in a later pass

  void add(const trace::Ids& ids, const trace::Ids& hashes, std::int64_t step, std::size_t pass) {
    for (std::size_t i = 0; i < std::min(ids.size(), hashes.size()); ++i) {
      if (ids[i] % one_of != 0) continue;
      const Given now{hashes[i], step, pass};
      const auto [before, is_new] = samples.try_emplace(ids[i], now);
      if (is_new || before->second.pass == pass) continue;
      if (before->second.hash != now.hash)
        varies = true;
      else
        ++again;
    }
  }
};

// Which of a rank's train passes a time is in; asked in order.
class PassOfTime {
 public:
  explicit PassOfTime(const trace::ParticipantTrace& rank) {
    for (const auto& at : rank.latest<trace::PassBegin>())
      if (at.event->phase == "train") begins_.push_back(at.time_ns);
  }
  std::size_t operator()(std::int64_t time) {
    while (pass_ < begins_.size() && begins_[pass_] <= time) ++pass_;
    return pass_;
  }

 private:
  std::vector<std::int64_t> begins_;
  std::size_t pass_ = 0;
};

OfRank from_loader(const trace::ParticipantTrace& rank, OfRank of) {
  PassOfTime pass(rank);
  for (const auto& at : rank.latest<trace::Contents>())
    of.add(at.event->ids, at.event->hashes, at.step, pass(at.time_ns));
  return of;
}

// Pairs each train batch's positions with the rows that come next, where there are as many.
OfRank from_forward(const trace::ParticipantTrace& rank, OfRank of) {
  const auto drawn = rank.latest<trace::Samples>();
  const auto fed = rank.latest<trace::Rows>();
  PassOfTime pass(rank);
  std::size_t next = 0;
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const auto until = i + 1 < drawn.size() ? drawn[i + 1].time_ns : INT64_MAX;
    while (next < fed.size() && fed[next].time_ns < drawn[i].time_ns) ++next;
    const bool follows = next < fed.size() && fed[next].time_ns <= until;
    if (follows && drawn[i].event->phase == "train" &&
        fed[next].event->hashes.size() == drawn[i].event->ids.size())
      of.add(drawn[i].event->ids, fed[next].event->hashes, drawn[i].step, pass(drawn[i].time_ns));
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

// What is the same each time a rank is given it, and other numbers on another rank.
Verdict judge(const Run& run, OfRank (*given)(const trace::ParticipantTrace&, OfRank),
              const std::string& from) {
  constexpr std::size_t kNeighbours = 8;  // that a rank is compared with: a job may have very many
  std::vector<OfRank> ranks;
  std::int64_t again = 0, compared = 0;
  const auto one_of = static_cast<std::int64_t>(1 + run.ranks.size() / 32);
  for (const auto* rank : run.ranks) {
    ranks.push_back(given(*rank, {.one_of = one_of}));
    if (ranks.back().varies)
      return not_triggered("a sample is other numbers each time it is given");
    again += ranks.back().again;
  }
  std::vector<std::size_t> alike(ranks.size());  // the first rank that holds the same samples
  std::optional<Met> first;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    alike[r] = r;
    for (std::size_t other = r - std::min(r, kNeighbours); other < r; ++other) {
      const auto met = meet(ranks[other], ranks[r]);
      compared += met.compared;
      const bool differ = is_proved(met, again);
      if (differ && (!first || met.step < first->step)) first = met;
      if (!differ && met.compared > 0 && met.different == 0)
        alike[r] = std::min(alike[r], alike[other]);
    }
  }
  if (compared == 0 || again == 0)
    return not_triggered(
        "no sample was given to one rank twice, or none to two ranks in different passes");
  if (!first) return clean();
  return found(
      {.severity = Severity::advice,
       .ranks = odd_ones_out(run.numbers, alike),
       .step = first->step,
       .evidence = fmt::format(
           "{} of {} that two ranks are given in different passes are other numbers on each, as {} "
           "gives them; a rank that is given one again gets the same numbers ({})",
           first->different, plural(first->compared, "sample"), from, plural(again, "time"))});
}

// Positions of data sets that are known to differ say nothing.
bool count_the_same_data(const Run& run) {
  std::optional<std::uint64_t> first;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->latest<trace::Dataset>()) {
      if (at.event->phase != "train") continue;
      if (first && *first != at.event->ids_in_order) return false;
      first = at.event->ids_in_order;
    }
  return true;
}

Verdict samples_differ(const Run& run) {
  if (!train_one_model(run)) return not_triggered(kNotOneModel);
  if (!count_the_same_data(run))
    return not_applicable("the ranks' positions are of different data sets");
  auto by_loader = judge(run, from_loader, "the data loader");
  if (by_loader.state == State::found) return by_loader;
  auto by_forward = judge(run, from_forward, "the program");
  return by_forward.state == State::not_triggered ? by_loader : by_forward;
}

}  // namespace
}  // namespace lockstep::diagnose
