// Pitfalls of evaluation: samples that count twice, and an exam that changes.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/passes.h>

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

namespace lockstep::diagnose {
namespace {
Verdict evaluation_padding(const Run& run);
Verdict shuffled_evaluation(const Run& run);
}  // namespace

std::vector<Detector> evaluation_detectors() {
  return {
      // Needs samples and a metric of an evaluation pass; N % W != 0. Rule: the metric counts 1 to
      // W - 1 samples more than there are different ids. Not fooled by repeats that are drawn and
      // not counted.
      {.slug = "evaluation-padding",
       .equation = Equation::joined_figures,
       .whole = true,
       .needs = {"pass_begin", "samples", "metric", "pass_end"},
       .detect = evaluation_padding},
      // Needs samples of two evaluation passes over equally many. Rule: their sets of ids differ,
      // no other pass drew one of the two again, and they overlap; or they do not, and two random
      // choices from the one evaluation data set that was recorded may well do so. Not fooled by
      // another order, by a few batches at first and all at the end, by another data set, nor by
      // one fold after another.
      {.slug = "shuffled-evaluation",
       .equation = Equation::joined_figures,
       .needs = {"pass_begin", "samples", "pass_end"},
       .fewest = 1,
       .detect = shuffled_evaluation},
  };
}

namespace {
// Samples behind a metric, over all ranks. The ranks' counts are one and the same figure when they
// are equal and cover what was drawn by all; else each is of the rank's own draws.
double samples_counted(const std::vector<double>& counts, const Pass& pass) {
  const bool equal = std::equal(counts.begin() + 1, counts.end(), counts.begin());
  const auto distinct = static_cast<double>(pass.drawn.different);
  bool own = counts.size() == pass.ranks.size();
  for (std::size_t r = 0; r < counts.size() && own; ++r)
    own = counts[r] == static_cast<double>(pass.ranks[r].total());
  if (equal && (counts.front() >= distinct || !own)) return counts.front();
  double sum = 0;
  for (const auto count : counts) sum += count;
  return sum;
}

std::map<std::string, double> last_counts(const RankPass& pass) {
  std::map<std::string, double> by_name;
  for (const auto* metric : pass.metrics) by_name[metric->name] = metric->count;
  return by_name;
}

Verdict evaluation_padding(const Run& run) {
  const auto size = global_size(run, "evaluation");
  if (size > 0 && size % run.world_size == 0) return not_applicable("the data divide by the ranks");
  const auto& passes = finished_passes(run, "evaluation");
  if (passes.empty()) return not_triggered("no evaluation pass that every rank began and finished");

  bool looked = false;
  for (const auto& pass : passes) {
    const auto& all = pass.drawn;
    if (all.different == 0) continue;  // a stream's
    std::map<std::string, std::vector<double>> by_name;
    for (const auto& rank : pass.ranks)
      for (const auto& [name, count] : last_counts(rank)) by_name[name].push_back(count);
    for (const auto& [name, of_ranks] : by_name) {
      looked = true;
      const double counted = samples_counted(of_ranks, pass);
      const double too_many = counted - static_cast<double>(all.different);
      if (too_many < 1 || too_many >= run.world_size) continue;
      return found({.ranks = run.numbers,
                    .step = pass.step(),
                    .evidence = fmt::format(
                        "an evaluation metric counts {} samples, and {} different ones were drawn",
                        number(counted), all.different)});
    }
  }
  return looked ? clean() : not_triggered("no metric of an evaluation pass was recorded");
}

// Samples of the evaluation data set; 0 where none or several were recorded: which of those a pass
// is over is not known.
std::int64_t only_evaluation_set(const Run& run) {
  for (const auto* rank : run.ranks) {
    std::set<std::tuple<std::int64_t, std::uint64_t, std::uint64_t>> sets;
    for (const auto& at : rank->all<trace::Dataset>())
      if (at.event->phase == "evaluation")
        sets.insert({at.event->global_size, at.event->ids_as_set, at.event->content_as_set});
    if (sets.size() > 1) return 0;
  }
  return global_size(run, "evaluation");
}

// The passes whose samples no other pass drew again: a set that comes back was not drawn by chance.
std::vector<std::size_t> drawn_once(const std::vector<Draws>& passes) {
  std::vector<std::size_t> once;
  for (std::size_t k = 0; k < passes.size(); ++k)
    if (std::count(passes.begin(), passes.end(), passes[k]) == 1) once.push_back(k);
  return once;
}

Verdict shuffled_evaluation(const Run& run) {
  constexpr double kUnlikely = 4.6;  // e^-4.6 = 1 %
  const auto& passes = finished_passes(run, "evaluation");
  if (passes.size() < 2)
    return not_triggered("fewer than two evaluation passes that every rank finished");
  std::vector<Draws> drawn;
  for (const auto& pass : passes) drawn.push_back(draws(pass));
  if (std::all_of(drawn.begin(), drawn.end(), [](const Draws& all) { return all.total == 0; }))
    return not_triggered("no sample of an evaluation was recorded");
  const auto size = static_cast<double>(only_evaluation_set(run));

  // Pairs of equally many samples. Where all are without a common one, that may be so by chance:
  // n of N drawn twice have none in common with a chance of about exp(-n * n / N).
  std::optional<std::pair<std::size_t, std::size_t>> overlapping, disjoint;
  double against = 0;  // minus the logarithm of that chance, over all disjoint pairs
  bool outside = false;
  const auto once = drawn_once(drawn);
  for (std::size_t i = 0; i < once.size(); ++i)
    for (std::size_t j = i + 1; j < once.size(); ++j) {
      const auto &a = drawn[once[i]], &b = drawn[once[j]];
      if (a.total != b.total || a.distinct.empty()) continue;
      const auto common = in_both(a, b);
      const auto n = static_cast<double>(a.distinct.size());
      auto& pair = common > 0 ? overlapping : disjoint;
      if (!pair) pair = {once[i], once[j]};
      if (common > 0) continue;
      outside = outside || 2 * n > size;
      if (size > 0) against += n * n / size;
    }
  if (!overlapping && !disjoint)
    return once.size() < passes.size()
               ? clean()
               : not_triggered("no two evaluation passes are over equally many samples");
  if (!overlapping && (outside || against > kUnlikely))
    return not_triggered("the evaluation passes have no sample in common: they may be meant to");
  const auto [first, second] = overlapping ? *overlapping : *disjoint;
  return found(
      {.ranks = run.numbers,
       .step = passes[second].step(),
       .evidence = fmt::format(
           "evaluation pass {} drew {} different samples, of which pass {}, of as many, drew {}",
           second, drawn[second].distinct.size(), first, in_both(drawn[first], drawn[second]))});
}

}  // namespace
}  // namespace lockstep::diagnose
