// Pitfalls of figures that are reported: of one rank's part, or a part over the whole.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/passes.h>

#include <algorithm>

namespace lockstep::diagnose {
namespace {
Verdict rank_zero_metric(const Run& run);
Verdict local_hits_global_count(const Run& run);
}  // namespace

// Both need samples of a finished pass, and metrics of it.
std::vector<Detector> metrics_detectors() {
  return {
      // Advice. Rule: one rank alone reports a metric of just the samples that it drew itself, and
      // others drew more. Not fooled by ranks that each report their own, nor by a rank that draws
      // all the samples.
      {.slug = "rank-zero-metric",
       .equation = Equation::joined_figures,
       .whole = true,
       .needs = {"pass_begin", "samples", "metric", "pass_end"},
       .participants = Participants::ranks,
       .detect = rank_zero_metric},
      // Needs a metric on every rank. Rule: each counts all ranks' samples, more than the rank
      // drew, and the ranks' sums differ. Not fooled by a count that is known and not reduced, nor
      // by ranks that each draw all.
      {.slug = "local-hits-global-count",
       .equation = Equation::joined_figures,
       .needs = {"pass_begin", "samples", "metric", "pass_end"},
       .participants = Participants::ranks,
       .detect = local_hits_global_count},
  };
}

namespace {
// One pass of all ranks: what each drew, and the figures it reported about it.
struct ReportedPass {
  std::vector<double> own;  // samples each rank drew
  double all = 0;           // different samples, over all ranks
  std::int64_t step = -1;
  std::vector<std::vector<const trace::Metric*>> metrics;  // by rank
};

std::vector<ReportedPass> reported_passes(const Run& run) {
  std::vector<ReportedPass> result;
  for (const std::string phase : {"train", "evaluation"}) {
    for (const auto& drawn : finished_passes(run, phase)) {
      ReportedPass pass;
      pass.step = drawn.step();
      bool any = false;
      for (const auto& rank : drawn.ranks) {
        pass.own.push_back(static_cast<double>(rank.total()));
        pass.metrics.push_back(rank.metrics);
        any = any || !rank.metrics.empty();
      }
      if (!any) continue;
      pass.all = static_cast<double>(drawn.drawn.different);
      if (pass.all == 0) continue;  // which samples they were is not known
      result.push_back(std::move(pass));
    }
  }
  return result;
}

// A rank's figure of the samples that it drew itself, where others drew more.
const trace::Metric* of_own_part(const ReportedPass& pass, std::size_t rank) {
  for (const auto* metric : pass.metrics[rank])
    if (metric->count == pass.own[rank] && pass.own[rank] < pass.all) return metric;
  return nullptr;
}

// The sums of a rank's figures that count more samples than it drew, and as many as all drew.
std::vector<double> sums_over_all(const ReportedPass& pass, std::size_t rank) {
  std::vector<double> sums;
  for (const auto* metric : pass.metrics[rank])
    if (metric->count >= pass.all && metric->count > pass.own[rank]) sums.push_back(metric->sum);
  return sums;
}

bool holds(const std::vector<double>& sums, double sum) {
  return std::any_of(sums.begin(), sums.end(), [&](double other) { return are_close(sum, other); });
}

const char* const kNoMetric = "no pass with samples and a metric was recorded";

Verdict rank_zero_metric(const Run& run) {
  const auto passes = reported_passes(run);
  if (passes.empty()) return not_triggered(kNoMetric);
  for (const auto& pass : passes) {
    std::vector<std::size_t> reporters;
    for (std::size_t r = 0; r < pass.own.size(); ++r)
      if (of_own_part(pass, r) != nullptr) reporters.push_back(r);
    if (reporters.size() != 1) continue;
    const auto* metric = of_own_part(pass, reporters[0]);
    const int rank = run.numbers[reporters[0]];
    return found({.severity = Severity::advice,
                  .ranks = {rank},
                  .step = pass.step,
                  .evidence = fmt::format("rank {} alone reports a metric, {}, of the {} samples "
                                          "it drew itself; all ranks drew {}",
                                          rank, number(metric->sum / metric->count),
                                          number(metric->count), number(pass.all))});
  }
  return clean();
}

Verdict local_hits_global_count(const Run& run) {
  const auto passes = reported_passes(run);
  if (passes.empty()) return not_triggered(kNoMetric);
  bool looked = false;
  for (const auto& pass : passes) {
    std::vector<std::vector<double>> sums;
    for (std::size_t r = 0; r < pass.own.size(); ++r) sums.push_back(sums_over_all(pass, r));
    if (std::any_of(sums.begin(), sums.end(), [](const auto& of_rank) { return of_rank.empty(); }))
      continue;
    looked = true;
    // A figure that was reduced is the same on all ranks.
    const bool one_in_common = std::any_of(sums[0].begin(), sums[0].end(), [&](double sum) {
      return std::all_of(sums.begin(), sums.end(),
                         [&](const auto& of_rank) { return holds(of_rank, sum); });
    });
    if (one_in_common) continue;
    return found(
        {.ranks = run.numbers,
         .step = pass.step,
         .evidence = fmt::format("ranks report sums of {} and {}, each over the {} samples that "
                                 "all drew together; rank {} drew {}",
                                 number(sums.front().back()), number(sums.back().back()),
                                 number(pass.all), run.numbers.front(), number(pass.own.front()))});
  }
  return looked ? clean()
                : not_triggered("no metric that every rank holds counts more than its own samples");
}

}  // namespace
}  // namespace lockstep::diagnose
