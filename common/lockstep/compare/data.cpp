// What the ranks were fed: sample ids, what the data set holds, random numbers, and the tensors that went in.
#include <lockstep/base/hash.h>
#include <lockstep/base/text.h>
#include <lockstep/compare/looks.h>
#include <lockstep/diagnose/evidence.h>

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

// Where lists are long and differ late, the part that differs.
Numbers from(const Numbers& ids, std::ptrdiff_t first) {
  return Numbers(ids.begin() + first, ids.end());
}

// `seen` has which samples are drawn, `order` the order of equal ones.
void compare_ids(At at, const std::string& phase, const Numbers& a, const Numbers& b, Seen& seen,
                 Seen& order) {
  const auto same = std::ranges::mismatch(a, b).in1 - a.begin();
  const auto text = [&](const Numbers& ids) { return ids_text(from(ids, same)); };
  if (sorted(a) == sorted(b)) {
    seen.compared(at.step);
    order.texts(at, "order of the " + phase + " samples", text(a), text(b));
  } else if (a.empty() || b.empty()) {
    seen.texts(at, phase + " samples", ids_text(a), ids_text(b));
  } else if (same == std::ssize(a) || same == std::ssize(b)) {
    seen.texts(at, "number of " + phase + " samples, the first of which are the same",
               std::to_string(a.size()), std::to_string(b.size()));
  } else {
    seen.texts(at, phase + " samples", text(a), text(b));
  }
}

// The ids of a phase at one step: of each rank, or of all together in ascending order.
std::vector<Numbers> ids_of(const Events<trace::Samples>& events, const std::string& phase,
                            bool of_each) {
  std::vector<Numbers> ids(of_each ? events.size() : 1);
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
  return run.kinds.count(trace::Samples::kName) > 0 || run.kinds.count(trace::PassEnd::kName) > 0;
}

void compare_drawn(const Pair& pair, Seen& seen, Seen& order) {
  const auto a = events_by_step<trace::Samples>(pair.a), b = events_by_step<trace::Samples>(pair.b);
  if (!draws_known(pair.a) || !draws_known(pair.b)) return;
  const auto last_of = [](const auto& side) { return side.empty() ? -1 : side.rbegin()->first; };
  const auto last = std::min(last_of(a), last_of(b));
  for (const auto step : steps_of_either(a, b)) {
    const auto in_a = events_at(a, step, pair.a), in_b = events_at(b, step, pair.b);
    for (const std::string phase : {"train", "evaluation"}) {
      const auto of_a = ids_of(in_a, phase, pair.same_ranks);
      const auto of_b = ids_of(in_b, phase, pair.same_ranks);
      for (std::size_t r = 0; r < of_a.size(); ++r)
        if (!of_a[r].empty() || !of_b[r].empty())
          compare_ids({step, pair.rank(r)}, phase, of_a[r], of_b[r], seen, order);
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

void compare_sets(const Pair& pair, Seen& seen) {
  for (const std::string phase : {"train", "evaluation"}) {
    for (std::size_t r = 0; r < pair.ranks(); ++r) {
      const auto a = contents_of(pair.a, phase, pair.only(r)),
                 b = contents_of(pair.b, phase, pair.only(r));
      if (!a.known || !b.known) continue;
      const At at{kBefore, pair.rank(r)};
      const auto what = phase + " data set: ";
      seen.texts(at, what + "samples", std::to_string(a.size), std::to_string(b.size));
      seen.texts(at, what + "hash of its ids", hexadecimal(a.ids), hexadecimal(b.ids),
                 a.ids && b.ids && a.ids != b.ids);
      seen.texts(at, what + "hash of what it holds", hexadecimal(a.content), hexadecimal(b.content),
                 a.content && b.content && a.content != b.content);
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

void compare_samples(const Pair& pair, Seen& seen, Seen& order) {
  compare_sets(pair, seen);
  compare_drawn(pair, seen, order);
}

void compare_random(const Pair& pair, Seen& seen) {
  for_each_step<trace::RandomNumbers>(pair, [&](std::int64_t step, const auto& a, const auto& b) {
    for (std::size_t r = 0; r < pair.ranks(); ++r) {
      const auto of_a = drawn_in(a, pair.only(r)), of_b = drawn_in(b, pair.only(r));
      seen.compared(step);
      const auto [x, y] = std::ranges::mismatch(of_a, of_b);
      // Of other samples the data differ.
      if (x == of_a.end() || y == of_b.end() || x->first != y->first) continue;
      seen.texts({step, pair.rank(r)}, "random numbers of sample " + std::to_string(x->first),
                 hexadecimal(x->second), hexadecimal(y->second));
    }
  });
}

void compare_inputs(const Pair& pair, std::optional<std::int64_t> until, Seen& seen) {
  if (!pair.same_ranks) return;  // each rank's are of its own samples
  const auto tolerance = pair.tolerance(diagnose::Quantity::input, 0);
  for_each_in_both<trace::Input>(pair, [&](At at, const auto& a, const auto& b) {
    // Targets, and what further modules are given, may come from a model's own outputs. In evaluation
    // mode a run records no input.
    const bool is_fed = a.index >= 0 && a.index < trace::Input::kOfAnother && b.index == a.index;
    if (!is_fed || (until && at.step >= *until)) return;
    const auto what = "input " + std::to_string(a.index) + ": ";
    seen.texts(at, what + "dtype", a.dtype, b.dtype);
    seen.texts(at, what + "shape", diagnose::shape_text(a.shape), diagnose::shape_text(b.shape));
    seen.numbers(at, what + "deviation", a.deviation, b.deviation, tolerance);
    seen.numbers(at, what + "smallest", a.least, b.least, tolerance);
    seen.numbers(at, what + "largest", a.greatest, b.greatest, tolerance);
  });
}

}  // namespace lockstep::compare
