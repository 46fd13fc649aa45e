// What each rank finds in an evaluation, and nobody joins.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/differences.h>
#include <lockstep/diagnose/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::diagnose {
namespace {
std::vector<Finding> own_evaluations(const Run& run);
}  // namespace

std::vector<Detector> own_figures_detectors() {
  return {
      // Advice. Needs `evaluation_input`, which Python's forwards without gradients leave, or `metric`
      // without a phase, which C++ leaves where a program reads a mean; and of every rank. Rule: after the last update,
      // or after a pass over the data, each rank's model is given other samples, or each reads another mean, and no
      // collective follows before training goes on, nor in a later evaluation. Not fooled by ranks that all evaluate
      // the same samples, in whatever order, by one that evaluates alone, by a barrier or what one rank sends, by what
      // DistributedDataParallel calls in a forward, nor by ranks that read their own means beside that of all.
      {.slug = "evaluation-not-reduced",
       .equation = Equation::joined_figures,
       .whole = true,
       .line = "update",
       .needs = {"update"},
       .participants = Participants::ranks,
       .detect = [](const Run& run) { return among_replicas(run, own_evaluations); }},
  };
}

namespace {
// What a rank did between two updates, or after the last: up to the next forward or backward that trains.
struct OwnEvaluation {
  // Of forwards without gradients: how many samples they were given, and a sum over them that is equal for equal ones.
  std::int64_t samples = 0;
  std::uint64_t content = 0;
  // The means that the program read, in order; those from `own` on were read after the last collective.
  std::vector<const trace::Metric*> figures;
  std::size_t own = 0;
  bool ends_pass = false;  // a pass over the train data was over by then
  bool is_joined = false;  // a collective ran after the first of the forwards
};

using OwnEvaluations = std::map<std::int64_t, OwnEvaluation>;  // by the updates before

bool is_figure(const trace::Metric& metric) {
  return metric.phase.empty() && std::isfinite(metric.sum) && metric.count > 0;
}

// DistributedDataParallel's own, where the event behind these calls is its forward: they share out the buffers.
bool are_of_forward(const std::vector<trace::Event>& events, std::size_t after) {
  while (after < events.size() && events[after].is<trace::Collective>()) ++after;
  if (after < events.size() && events[after].is<trace::EvaluationInput>()) ++after;
  while (after < events.size() && events[after].is<trace::Collective>()) ++after;
  return after < events.size() && events[after].is<trace::Forward>();
}

// What one rank sends to the others is of its own share, too.
bool joins(const trace::Collective& call) {
  return call.op != "barrier" && call.op != "broadcast" && call.op != "scatter";
}

OwnEvaluations evaluations_of(const trace::ParticipantTrace& rank) {
  OwnEvaluations found;
  OwnEvaluation* now = nullptr;  // while it lasts
  bool pass_is_over = false;     // since the last update
  bool of_evaluation = false;    // the last event but for collectives was an evaluation's forward
  for (std::size_t i = rank.last_attempt; i < rank.events.size(); ++i) {
    const auto& event = rank.events[i];
    const auto* given = event.as<trace::EvaluationInput>();
    const auto* metric = event.as<trace::Metric>();
    if (given || (metric && is_figure(*metric))) {
      if (event.step <= 0) continue;  // nothing was trained yet
      now = &found[event.step];
      now->ends_pass = now->ends_pass || pass_is_over;
      if (given) {
        of_evaluation = true;
        now->samples += given->samples;
        now->content += given->content;
      }
      if (metric) now->figures.push_back(metric);
      continue;
    }
    if (const auto* call = event.as<trace::Collective>()) {
      if (!now || !joins(*call)) continue;
      const bool is_engines = of_evaluation
                                  ? are_of_forward(rank.events, i)
                                  : call->op == "broadcast" && are_of_forward(rank.events, i);
      if (is_engines) continue;
      now->is_joined = true;
      now->own = now->figures.size();
      continue;
    }
    const auto* end = event.as<trace::PassEnd>();
    pass_is_over = (pass_is_over || (end && end->phase == "train")) && !event.is<trace::Update>();
    // A module in training mode may also run without gradients.
    const bool looks = event.is<trace::Forward>() && of_evaluation;
    const auto* forward = event.as<trace::Forward>();
    const auto* begin = event.as<trace::PassBegin>();
    if (event.is<trace::Update>() || event.is<trace::Loss>() ||
        event.is<trace::GradientArrived>() || (forward && forward->training && !looks) ||
        (begin && begin->phase == "train"))
      now = nullptr;
    of_evaluation = false;
  }
  return found;
}

// Every rank's evaluation after the same update.
using OwnEvaluationOfRanks = std::vector<const OwnEvaluation*>;

bool forwards_are_own(const OwnEvaluationOfRanks& ranks) {
  std::set<std::uint64_t> contents;
  for (const auto* rank : ranks) {
    if (rank->samples == 0 || rank->is_joined) return false;
    contents.insert(rank->content);
  }
  return contents.size() == ranks.size();
}

bool is_of_all(const OwnEvaluationOfRanks& ranks, double sum, double count) {
  for (std::size_t k = 0; k < ranks.front()->figures.size(); ++k)
    if (std::all_of(ranks.begin(), ranks.end(), [&](const auto* rank) {
          return are_close(rank->figures[k]->sum, sum) && are_close(rank->figures[k]->count, count);
        }))
      return true;
  return false;
}

// The place of the first figure that each rank has of its own, and that no figure of all of them sums up.
std::optional<std::size_t> own_figure(const OwnEvaluationOfRanks& ranks) {
  std::size_t first = 0;
  for (const auto* rank : ranks) {
    if (rank->figures.size() != ranks.front()->figures.size()) return std::nullopt;
    first = std::max(first, rank->own);
  }
  for (auto k = first; k < ranks.front()->figures.size(); ++k) {
    double sum = 0, count = 0;
    bool differ = false;
    for (const auto* rank : ranks) {
      sum += rank->figures[k]->sum;
      count += rank->figures[k]->count;
      differ = differ || !are_close(rank->figures[k]->sum, ranks.front()->figures[k]->sum);
    }
    if (differ && !is_of_all(ranks, sum, count)) return k;
  }
  return std::nullopt;
}

std::string text_of(const OwnEvaluationOfRanks& ranks, std::size_t r,
                    std::optional<std::size_t> figure) {
  if (!figure) return plural(ranks[r]->samples, "sample");
  const auto& metric = *ranks[r]->figures[*figure];
  return fmt::format("{} of {}", number(metric.sum / metric.count), number(metric.count));
}

Finding finding_of(const Run& run, std::int64_t step, const OwnEvaluationOfRanks& ranks) {
  const auto figure = forwards_are_own(ranks) ? std::nullopt : own_figure(ranks);
  std::size_t other = 1;  // one that has another figure
  while (figure && are_close(ranks[other]->figures[*figure]->sum, ranks[0]->figures[*figure]->sum))
    ++other;
  return {.severity = Severity::advice,
          .ranks = run.numbers,
          .step = step,
          .evidence = fmt::format(
              "after this update each rank {} (rank {}: {}; rank {}: {}), and no collective joins "
              "what they find: what a rank reports, or decides by, is of its own share",
              figure ? "has a mean of its own" : "evaluates other samples", run.numbers[0],
              text_of(ranks, 0, figure), run.numbers[other], text_of(ranks, other, figure))};
}

std::int64_t updates_of(const trace::ParticipantTrace& rank) {
  const auto all = rank.latest<trace::Update>();
  return all.empty() ? 0 : all.back().step + 1;
}

// The first evaluation from which on none is joined: an earlier one may have been joined in a later one. Those inside of
// a pass over the data are left alone, such as the forwards of a teacher, or of a policy that plays.
std::vector<Finding> own_evaluations(const Run& run) {
  std::vector<OwnEvaluations> found;
  for (const auto* rank : run.ranks) found.push_back(evaluations_of(*rank));
  const auto last = updates_of(*run.ranks.front());
  std::optional<Finding> finding;
  for (auto at = found.front().rbegin(); at != found.front().rend(); ++at) {
    OwnEvaluationOfRanks ranks;
    for (const auto& of_rank : found)
      if (const auto its = of_rank.find(at->first); its != of_rank.end())
        ranks.push_back(&its->second);
    if (ranks.size() < found.size()) break;
    const bool is_whole =
        at->first == last ||
        std::all_of(ranks.begin(), ranks.end(), [](auto* rank) { return rank->ends_pass; });
    if (is_whole && (forwards_are_own(ranks) || own_figure(ranks)))
      finding = finding_of(run, at->first, ranks);
    else if (is_whole || ranks.front()->is_joined)
      break;
  }
  return finding ? std::vector{*finding} : std::vector<Finding>{};
}

}  // namespace
}  // namespace lockstep::diagnose
