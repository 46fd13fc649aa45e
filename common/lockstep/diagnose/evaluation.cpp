// Pitfalls of evaluation: samples that count twice, and an exam that changes.
#include <lockstep/diagnose/detectors.h>
#include <lockstep/diagnose/passes.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace lockstep::diagnose {
namespace {

const char* const kNoPass = "no evaluation pass that every rank began and finished";

// The counts of one rank's evaluation metrics, by name, of its k-th pass: recorded before the next
// begins.
using Counts = std::map<std::string, double>;

std::vector<Counts> counts_by_pass(const trace::ParticipantTrace& rank) {
  std::vector<Counts> passes;
  for (const auto& event : rank.events) {
    if (const auto* begin = std::get_if<trace::PassBegin>(&event.payload))
      if (begin->phase == "evaluation") passes.emplace_back();
    if (const auto* metric = std::get_if<trace::Metric>(&event.payload))
      if (metric->phase == "evaluation" && !passes.empty())
        passes.back()[metric->name] = metric->count;
  }
  return passes;
}

// Samples behind a metric, over all ranks. The ranks' counts are one and the same figure when they
// are equal and cover what was drawn by all; else each is of the rank's own draws.
double samples_counted(const std::vector<double>& counts, const std::vector<Draws>& ranks,
                       const Draws& all) {
  const bool equal = std::equal(counts.begin() + 1, counts.end(), counts.begin());
  const auto distinct = static_cast<double>(all.distinct.size());
  bool own = counts.size() == ranks.size();
  for (std::size_t r = 0; r < counts.size() && own; ++r)
    own = counts[r] == static_cast<double>(ranks[r].total);
  if (equal && (counts.front() >= distinct || !own)) return counts.front();
  double sum = 0;
  for (const auto count : counts) sum += count;
  return sum;
}

}  // namespace

Verdict evaluation_padding(const trace::Trace& trace) {
  const Run run(trace);
  if (run.world_size < 2) return not_applicable("one rank pads nothing");
  if (!run.complete) return not_triggered("a rank left no trace");
  const auto size = global_size(run, "evaluation");
  if (size > 0 && size % run.world_size == 0) return not_applicable("the data divide by the ranks");
  const auto passes = finished_passes(run, "evaluation");
  if (passes.empty()) return not_triggered(kNoPass);
  std::vector<std::vector<Counts>> counts;
  for (const auto* rank : run.ranks) counts.push_back(counts_by_pass(*rank));

  bool looked = false;
  for (std::size_t k = 0; k < passes.size(); ++k) {
    const auto all = draws(passes[k]);
    std::vector<Draws> ranks;
    for (const auto& rank : passes[k].ranks) ranks.push_back(draws(rank));
    std::map<std::string, std::vector<double>> by_name;
    for (const auto& rank : counts)
      if (k < rank.size())
        for (const auto& [name, count] : rank[k]) by_name[name].push_back(count);
    for (const auto& [name, of_ranks] : by_name) {
      looked = true;
      const double counted = samples_counted(of_ranks, ranks, all);
      const double too_many = counted - static_cast<double>(all.distinct.size());
      if (too_many < 1 || too_many >= run.world_size) continue;
      return found({.pitfall = "evaluation-padding",
                    .ranks = run.numbers,
                    .step = passes[k].step(),
                    .evidence = "an evaluation metric counts " + number(counted) +
                                " samples, and " + std::to_string(all.distinct.size()) +
                                " different ones were drawn"});
    }
  }
  return looked ? clean() : not_triggered("no metric of an evaluation pass was recorded");
}

Verdict shuffled_evaluation(const trace::Trace& trace) {
  const Run run(trace);
  if (!run.complete) return not_triggered("a rank left no trace");
  const auto passes = finished_passes(run, "evaluation");
  if (passes.size() < 2)
    return not_triggered("fewer than two evaluation passes that every rank finished");
  const auto first = draws(passes.front());
  for (std::size_t k = 1; k < passes.size(); ++k) {
    const auto now = draws(passes[k]);
    if (now == first) continue;
    std::vector<std::int64_t> both;
    std::set_intersection(first.distinct.begin(), first.distinct.end(), now.distinct.begin(),
                          now.distinct.end(), std::back_inserter(both));
    return found({.pitfall = "shuffled-evaluation",
                  .ranks = run.numbers,
                  .step = passes[k].step(),
                  .evidence = "evaluation pass " + std::to_string(k) + " drew " +
                              std::to_string(now.distinct.size()) +
                              " different samples, of which the "
                              "first pass drew " +
                              std::to_string(both.size())});
  }
  return clean();
}

}  // namespace lockstep::diagnose
