// Parameters that are no part of the recorded model.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/gradients.h>

#include <algorithm>
#include <optional>

namespace lockstep::diagnose {
namespace {

const char* const kOptimizers = "optimizers";

// Of one holder, every rank's, by the update that they were recorded after; where all ranks have the same ones.
using Steps = std::map<std::int64_t, std::vector<const trace::OutsideParameters*>>;

std::map<std::string, Steps> by_holder(const Run& run) {
  std::map<std::string, Steps> holders;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : run.ranks[r]->latest<trace::OutsideParameters>())
      if (auto& there = holders[at.event->holder][at.step]; there.size() == r)
        there.push_back(at.event);
  for (auto& [holder, steps] : holders)
    std::erase_if(steps, [&](const auto& step) {
      const auto& ranks = step.second;
      return step.first < 0 || ranks.size() < run.ranks.size() ||
             std::any_of(ranks.begin(), ranks.end(),
                         [&](const auto* rank) { return rank->names != ranks.front()->names; });
    });
  return holders;
}

// Experts and tables that are shared out send their inputs to each other.
bool shares_out_a_model(const Run& run) {
  return std::any_of(run.ranks.begin(), run.ranks.end(), [](const auto* rank) {
    const auto calls = rank->template latest<trace::Collective>();
    return std::any_of(calls.begin(), calls.end(), [](const auto& at) {
      return at.event->op.find("alltoall") != std::string::npos;
    });
  });
}

// The first step from which on one of the holder's parameters differs by rank, in every step that was recorded.
std::optional<Finding> apart_for_good(const Run& run, const std::string& holder,
                                      const Steps& steps) {
  std::optional<Finding> finding;
  std::int64_t before = -1;
  std::size_t recorded = 0;
  for (const auto& [step, ranks] : steps) {
    Replicas replicas;
    for (const auto* rank : ranks) replicas.push_back(&rank->values);
    const auto groups = groups_of_equal(replicas);
    if (groups.tensor < 0) {
      finding.reset();
      before = step;
      recorded = 0;
      continue;
    }
    ++recorded;
    if (finding) continue;
    const bool from_the_start = before < 0;
    finding = Finding{
        // A rank may train a part of its own beside the model.
        .severity =
            holder == kOptimizers && from_the_start ? Severity::advice : Severity::violation,
        .ranks = odd_ones_out(run.numbers, groups.of),
        .step = step,
        .evidence = tensor_text("parameter", static_cast<std::size_t>(groups.tensor),
                                ranks.front()->names) +
                    (holder == kOptimizers ? ", which an optimizer holds and the model does not,"
                                           : " of " + holder + ", which is no part of the model,") +
                    " differs by rank; the ranks' values are up to " +
                    number(spread_of(replicas).distance) + " (relative) apart",
        .after = before};
  }
  if (recorded < 2) return std::nullopt;
  return finding;
}

Verdict outside_parameters_differ(const Run& run) {
  if (!train_one_model(run)) return not_triggered("no sign that these ranks train one model");
  if (shares_out_a_model(run))
    return not_triggered("the ranks send each other different things: they may share out a model");
  Verdict verdict = clean();
  for (const auto& [holder, steps] : by_holder(run))
    if (auto finding = apart_for_good(run, holder, steps)) {
      verdict.state = State::found;
      verdict.findings.push_back(std::move(*finding));
    }
  return verdict;
}

}  // namespace

std::vector<Detector> outside_detectors() {
  return {
      // Needs `outside_parameters` of all ranks, under the same names. Rule: from some step on one differs by rank in
      // all that were recorded, and those are two at least. Advice: an optimizer's that were never equal. Not fooled by
      // an average that one rank alone keeps. not_triggered where ranks send each other different things (all-to-all).
      {.slug = "outside-parameters-differ",
       .needs = {"outside_parameters"},
       .participants = Participants::ranks,
       .generic = "parameters that the gradient engine does not hold, and that the training uses, "
                  "differ between ranks",
       .detect = outside_parameters_differ},
  };
}

}  // namespace lockstep::diagnose
