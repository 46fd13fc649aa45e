// What the ranks were fed: sample ids, what the data set holds, random numbers, and the tensors that went in.
#include <lockstep/base/hash.h>
#include <lockstep/base/text.h>
#include <lockstep/compare/aspects.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>

namespace lockstep::compare {
namespace {

using Numbers = std::vector<std::int64_t>;

// The first of them, and how many there are.
std::string ids_text(const Numbers& ids) {
  constexpr std::size_t kShown = 6;
  if (ids.empty()) return "no batch";
  std::string text;
  for (std::size_t i = 0; i < std::min(ids.size(), kShown); ++i)
    text += (i ? " " : "") +
            (ids[i] < 0 ? hexadecimal(static_cast<std::uint64_t>(ids[i])) : std::to_string(ids[i]));
  if (ids.size() > kShown)
    text += " ... (" + plural(static_cast<std::int64_t>(ids.size()), "id") + ")";
  return text;
}

Numbers sorted(Numbers ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

struct Rest {
  Numbers a, b;
};

// Where lists are long and differ late, the part that differs.
Rest from_first_difference(const Numbers& a, const Numbers& b) {
  std::size_t same = 0;
  while (same < std::min(a.size(), b.size()) && a[same] == b[same]) ++same;
  return {Numbers(a.begin() + static_cast<std::ptrdiff_t>(same), a.end()),
          Numbers(b.begin() + static_cast<std::ptrdiff_t>(same), b.end())};
}

std::ptrdiff_t common(const Numbers& a, const Numbers& b) {
  return static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
}

void compare_ids(std::int64_t step, int rank, const std::string& phase, const Numbers& a,
                 const Numbers& b, Ledger& ledger) {
  if (a == b) {
    ledger.compared(step);
    return;
  }
  const bool order = sorted(a) == sorted(b);
  const bool fewer =
      !a.empty() && !b.empty() && std::equal(a.begin(), a.begin() + common(a, b), b.begin());
  if (fewer) {
    ledger.texts(step, rank, "number of " + phase + " samples, the first of which are the same",
                 std::to_string(a.size()), std::to_string(b.size()), true);
    return;
  }
  const auto from = from_first_difference(a, b);
  ledger.texts(step, rank, (order ? "order of the " : "") + phase + " samples",
               ids_text(a.empty() || b.empty() ? a : from.a),
               ids_text(a.empty() || b.empty() ? b : from.b), true);
}

// The ids of a phase at one step: of each rank, or of all together in ascending order.
std::vector<Numbers> ids_of(const Events<trace::Samples>& events, const std::string& phase,
                            bool of_each, std::size_t ranks) {
  std::vector<Numbers> ids(of_each ? ranks : 1);
  for (std::size_t r = 0; r < events.size(); ++r)
    for (const auto* drawn : events[r])
      if (drawn->phase == phase) {
        auto& to = ids[of_each ? r : 0];
        to.insert(to.end(), drawn->ids.begin(), drawn->ids.end());
      }
  if (!of_each) ids[0] = sorted(ids[0]);
  return ids;
}

// A run that tells its passes draws nothing where it tells no samples.
bool draws_known(const diagnose::Run& run) {
  return has<trace::Samples>(run) || has<trace::PassEnd>(run);
}

void compare_samples(const Pair& pair, Ledger& ledger) {
  const auto a = events_by_step<trace::Samples>(pair.a), b = events_by_step<trace::Samples>(pair.b);
  if (!draws_known(pair.a) || !draws_known(pair.b)) return;
  std::set<std::int64_t> steps;
  for (const auto* side : {&a, &b})
    for (const auto& [step, events] : *side) steps.insert(step);
  const auto last_of = [](const auto& side) { return side.empty() ? -1 : side.rbegin()->first; };
  const auto last = std::min(last_of(a), last_of(b));
  const Events<trace::Samples> none;
  for (const auto step : steps) {
    const auto in_a = a.find(step), in_b = b.find(step);
    for (const std::string phase : {"train", "evaluation"}) {
      const auto of_a = ids_of(in_a == a.end() ? none : in_a->second, phase, pair.same_ranks,
                               pair.a.ranks.size());
      const auto of_b = ids_of(in_b == b.end() ? none : in_b->second, phase, pair.same_ranks,
                               pair.b.ranks.size());
      for (std::size_t r = 0; r < of_a.size(); ++r)
        if (!of_a[r].empty() || !of_b[r].empty())
          compare_ids(step, pair.rank(r), phase, of_a[r], of_b[r], ledger);
    }
    if (step > last) break;  // one run has ended: that is told once
  }
}

struct Contents {
  std::int64_t size = 0, global_size = 0;
  std::uint64_t ids = 0, content = 0;
  bool known = false;
};

// Of one rank, or of all: sets that do not overlap add up, and what each rank has whole is the same on all.
Contents contents_of(const diagnose::Run& run, const std::string& phase,
                     std::optional<std::size_t> only) {
  Contents all;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    if (only && r != *only) continue;
    for (const auto& at : run.ranks[r]->all<trace::Dataset>()) {
      const auto& set = *at.event;
      if (set.phase != phase) continue;
      const bool whole = set.size == set.global_size;
      if (all.known && whole) break;
      all.known = true;
      all.size += set.size, all.global_size = set.global_size;
      all.ids += set.ids_as_set, all.content += set.content_as_set;
      break;
    }
  }
  return all;
}

void compare_sets(const Pair& pair, Ledger& ledger) {
  for (const std::string phase : {"train", "evaluation"}) {
    for (std::size_t r = 0; r < pair.ranks(); ++r) {
      const auto only = pair.same_ranks ? std::optional(r) : std::nullopt;
      const auto a = contents_of(pair.a, phase, only), b = contents_of(pair.b, phase, only);
      if (!a.known || !b.known) continue;
      const int rank = pair.rank(r);
      const auto what = phase + " data set: ";
      ledger.texts(kBefore, rank, what + "samples", std::to_string(a.size), std::to_string(b.size),
                   a.size != b.size);
      ledger.texts(kBefore, rank, what + "hash of its ids", hexadecimal(a.ids), hexadecimal(b.ids),
                   a.ids && b.ids && a.ids != b.ids);
      ledger.texts(kBefore, rank, what + "hash of what it holds", hexadecimal(a.content),
                   hexadecimal(b.content), a.content && b.content && a.content != b.content);
    }
  }
}

// The numbers of each id, in order of the ids: which rank drew them does not matter.
std::vector<std::pair<std::int64_t, std::uint64_t>> drawn_in(
    const Events<trace::RandomNumbers>& events, std::optional<std::size_t> only) {
  std::vector<std::pair<std::int64_t, std::uint64_t>> drawn;
  for (std::size_t r = 0; r < events.size(); ++r) {
    if (only && r != *only) continue;
    for (const auto* numbers : events[r])
      for (std::size_t i = 0; i < numbers->hashes.size(); ++i)
        drawn.emplace_back(i < numbers->ids.size() ? numbers->ids[i] : -1, numbers->hashes[i]);
  }
  std::sort(drawn.begin(), drawn.end());
  return drawn;
}

}  // namespace

void compare_data(const Pair& pair, Ledger& ledger) {
  ledger.recorded(has<trace::Samples>(pair.a) || has<trace::Dataset>(pair.a),
                  has<trace::Samples>(pair.b) || has<trace::Dataset>(pair.b));
  compare_sets(pair, ledger);
  compare_samples(pair, ledger);
}

void compare_random(const Pair& pair, Ledger& ledger) {
  const auto a = events_by_step<trace::RandomNumbers>(pair.a),
             b = events_by_step<trace::RandomNumbers>(pair.b);
  ledger.recorded(!a.empty(), !b.empty());
  for (const auto& [step, in_a] : a) {
    const auto in_b = b.find(step);
    if (in_b == b.end()) continue;
    for (std::size_t r = 0; r < pair.ranks(); ++r) {
      const auto only = pair.same_ranks ? std::optional(r) : std::nullopt;
      const auto of_a = drawn_in(in_a, only), of_b = drawn_in(in_b->second, only);
      ledger.compared(step);
      for (std::size_t i = 0; i < std::min(of_a.size(), of_b.size()); ++i) {
        if (of_a[i].first != of_b[i].first) break;  // other samples: the data differ
        if (of_a[i].second == of_b[i].second) continue;
        ledger.texts(step, pair.rank(r),
                     "random numbers of sample " + std::to_string(of_a[i].first),
                     hexadecimal(of_a[i].second), hexadecimal(of_b[i].second), true);
        break;
      }
    }
  }
}

void compare_inputs(const Pair& pair, std::optional<std::int64_t> until, Ledger& ledger) {
  if (!pair.same_ranks) return;  // each rank's are of its own samples
  const auto tolerance = diagnose::tolerance_of(diagnose::Quantity::input, pair.unit, 0);
  for_each_in_both<trace::Input>(pair, [&](std::int64_t step, int rank, const auto& a,
                                           const auto& b) {
    // Targets, and what further modules are given, may come from a model's own outputs. In evaluation
    // mode a run records no input.
    const bool is_fed = a.index >= 0 && a.index < trace::Input::kOfAnother && b.index == a.index;
    if (!is_fed || (until && step >= *until)) return;
    const auto what = "input " + std::to_string(a.index) + ": ";
    ledger.texts(step, rank, what + "dtype", a.dtype, b.dtype, a.dtype != b.dtype);
    ledger.texts(step, rank, what + "shape", diagnose::shape_text(a.shape),
                 diagnose::shape_text(b.shape), a.shape != b.shape);
    ledger.numbers(step, rank, what + "deviation", a.deviation, b.deviation, tolerance);
    ledger.numbers(step, rank, what + "smallest", a.least, b.least, tolerance);
    ledger.numbers(step, rank, what + "largest", a.greatest, b.greatest, tolerance);
  });
}

}  // namespace lockstep::compare
