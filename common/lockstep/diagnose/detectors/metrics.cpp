// Pitfalls of figures that are reported: of one rank's part, or a part over the whole.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/passes.h>

#include <algorithm>
#include <cmath>

namespace lockstep::diagnose {
namespace {

// One pass of all ranks: what each drew, and the figures it reported about it.
struct ReportedPass {
  std::vector<double> own;  // samples each rank drew
  double all = 0;           // different samples, over all ranks
  std::int64_t step = -1;
  std::vector<std::vector<const trace::Metric*>> metrics;  // by rank
};

// Figures of the k-th pass are those recorded after it began and before the next one does.
std::vector<std::vector<const trace::Metric*>> metrics_by_pass(const trace::ParticipantTrace& rank,
                                                               const std::string& phase) {
  std::vector<std::vector<const trace::Metric*>> passes;
  for (const auto& event : rank.events) {
    if (const auto* begin = event.as<trace::PassBegin>())
      if (begin->phase == phase) passes.emplace_back();
    if (const auto* metric = event.as<trace::Metric>())
      if (metric->phase == phase && !passes.empty()) passes.back().push_back(metric);
  }
  return passes;
}

std::vector<ReportedPass> reported_passes(const Run& run) {
  std::vector<ReportedPass> result;
  for (const std::string phase : {"train", "evaluation"}) {
    const auto& passes = finished_passes(run, phase);
    std::vector<std::vector<std::vector<const trace::Metric*>>> metrics;  // by rank and pass
    for (const auto* rank : run.ranks) metrics.push_back(metrics_by_pass(*rank, phase));
    for (std::size_t k = 0; k < passes.size(); ++k) {
      ReportedPass pass;
      pass.step = passes[k].step();
      bool any = false;
      for (std::size_t r = 0; r < run.ranks.size(); ++r) {
        pass.own.push_back(static_cast<double>(passes[k].ranks[r].total()));
        pass.metrics.push_back(k < metrics[r].size() ? metrics[r][k]
                                                     : std::vector<const trace::Metric*>{});
        any = any || !pass.metrics.back().empty();
      }
      if (!any) continue;
      pass.all = static_cast<double>(passes[k].drawn.different);
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
  return std::any_of(sums.begin(), sums.end(), [&](double other) {
    return std::abs(sum - other) <= 1e-6 * std::max(std::abs(sum), std::abs(other));
  });
}

// What both need; nothing where it is there.
std::optional<Verdict> cannot_tell(const std::vector<ReportedPass>& passes) {
  if (passes.empty()) return not_triggered("no pass with samples and a metric was recorded");
  return std::nullopt;
}

Verdict rank_zero_metric(const Run& run) {
  const auto passes = reported_passes(run);
  if (auto verdict = cannot_tell(passes)) return *verdict;
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
                  .evidence = "rank " + std::to_string(rank) + " alone reports a metric, " +
                              number(metric->sum / metric->count) + ", of the " +
                              number(metric->count) + " samples it drew itself; all ranks drew " +
                              number(pass.all)});
  }
  return clean();
}

Verdict local_hits_global_count(const Run& run) {
  const auto passes = reported_passes(run);
  if (auto verdict = cannot_tell(passes)) return *verdict;
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
    return found({.ranks = run.numbers,
                  .step = pass.step,
                  .evidence = "ranks report sums of " + number(sums.front().back()) + " and " +
                              number(sums.back().back()) + ", each over the " + number(pass.all) +
                              " samples that all drew together; rank " +
                              std::to_string(run.numbers.front()) + " drew " +
                              number(pass.own.front())});
  }
  return looked ? clean()
                : not_triggered("no metric that every rank holds counts more than its own samples");
}

}  // namespace

// Both need samples of a finished pass, and metrics of it.
std::vector<Detector> metrics_detectors() {
  return {
      // Advice. Rule: one rank alone reports a metric of just the samples that it drew itself, and
      // others drew more. Not fooled by ranks that each report their own, nor by a rank that draws
      // all the samples.
      {.slug = "rank-zero-metric",
       .needs = {"pass_begin", "samples", "metric", "pass_end"},
       .participants = Participants::ranks,
       .detect = rank_zero_metric},
      // Needs a metric on every rank. Rule: each counts all ranks' samples, more than the rank
      // drew, and the ranks' sums differ. Not fooled by a count that is known and not reduced, nor
      // by ranks that each draw all.
      {.slug = "local-hits-global-count",
       .needs = {"pass_begin", "samples", "metric", "pass_end"},
       .participants = Participants::ranks,
       .detect = local_hits_global_count},
  };
}

}  // namespace lockstep::diagnose
