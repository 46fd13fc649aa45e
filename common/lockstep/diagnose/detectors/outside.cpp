// Parameters that are no part of the recorded model, or are frozen in it.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/differences.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/layers.h>

#include <algorithm>
#include <optional>

namespace lockstep::diagnose {
namespace {
Verdict outside_parameters_differ(const Run& run);
}  // namespace

std::vector<Detector> outside_detectors() {
  return {
      // Needs `outside_parameters` of all ranks, under the same names. Rule: from some step on one differs by rank in
      // all that were recorded, and those are two at least. Advice: an optimizer's that were never seen equal, buffers,
      // and a module's that training does not call, such as an average, if they move. Not fooled by an average that one
      // rank alone keeps, nor by a copy that stays as it is. not_triggered where ranks send each other different things
      // (all-to-all). Advice also: a number or tensor that a Python program keeps, by `moving`, was
      // the same on all ranks before the first update, and differs at each later look.
      {.slug = "outside-parameters-differ",
       .equation = Equation::equal_after,
       .participants = Participants::ranks,
       .accounts_for = {"losses-differ"},
       .detect = outside_parameters_differ},
  };
}

namespace {
// Of one holder, every rank's, by the update that they were recorded after (-1: before the first); where all ranks have
// the same ones.
using StepsOutside = std::map<std::int64_t, std::vector<const trace::OutsideParameters*>>;

// A holder is the class of a module that training calls, or one of these; more in lockstep_torch/outside.py.
const std::string kOptimizers = "optimizers", kFrozen = "frozen parameters",
                  kBuffers = "buffers of ", kKept = "kept ";

struct Holder {
  std::string name;
  bool optimizers = name == kOptimizers;
  bool frozen = name == kFrozen;
  bool buffers = name.rfind(kBuffers, 0) == 0;
  bool kept = name.rfind(kKept, 0) == 0;

  const char* kind() const { return buffers ? "buffer" : "parameter"; }
  std::string words() const {
    if (optimizers) return ", which an optimizer holds and the model does not,";
    if (frozen) return " of the model, which is frozen,";
    if (buffers) return " of " + name.substr(kBuffers.size());
    if (kept) return fmt::format(" of {}, which no optimizer holds,", name.substr(kKept.size()));
    return fmt::format(" of {}, which is no part of the model,", name);
  }
};

std::map<std::string, StepsOutside> by_holder(const Run& run) {
  std::map<std::string, StepsOutside> holders;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : run.ranks[r]->latest<trace::OutsideParameters>())
      if (auto& there = holders[at.event->holder][at.step]; there.size() == r)
        there.push_back(at.event);
  for (auto& [holder, steps] : holders)
    std::erase_if(steps, [&](const auto& step) {
      const auto& ranks = step.second;
      return ranks.size() < run.ranks.size() ||
             std::any_of(ranks.begin(), ranks.end(),
                         [&](const auto* rank) { return rank->names != ranks.front()->names; });
    });
  std::erase_if(holders, [](const auto& holder) { return holder.second.empty(); });
  return holders;
}

// On some rank, between the first and the last record.
bool move(const StepsOutside& steps) {
  const auto& first = steps.begin()->second;
  const auto& last = steps.rbegin()->second;
  for (std::size_t r = 0; r < first.size(); ++r)
    if (first_difference(first[r]->values, last[r]->values) >= 0) return true;
  return false;
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

// The first step from which on one of the holder's tensors differs by rank, in every step that was recorded.
std::optional<Finding> apart_for_good(const Run& run, const Holder& holder,
                                      const StepsOutside& steps) {
  std::optional<Finding> finding;
  std::optional<std::int64_t> before;
  std::size_t recorded = 0;
  for (const auto& [step, ranks] : steps) {
    const auto replicas = replicas_of(ranks);
    const auto groups = groups_of_equal(replicas);
    if (groups.tensor < 0) {
      finding.reset();
      before = step;
      recorded = 0;
      continue;
    }
    ++recorded;
    if (finding) continue;
    // A rank may train a part of its own beside the model, keep an average for itself, or statistics of its batches.
    const bool may_be_meant = holder.optimizers || holder.kept || holder.buffers;
    finding = Finding{.severity = may_be_meant ? Severity::advice : Severity::violation,
                      .ranks = odd_ones_out(run.numbers, groups.of),
                      .step = std::max<std::int64_t>(step, 0),
                      .evidence = fmt::format(
                          "{}{} differs by rank; the ranks' values are up to {} (relative) apart",
                          tensor_text(holder.kind(), static_cast<std::size_t>(groups.tensor),
                                      ranks.front()->names),
                          holder.words(), number(spread_of(replicas).distance)),
                      .after = before.value_or(-1)};
  }
  if (recorded < 2) return std::nullopt;
  return finding;
}

// ---- numbers that a Python program keeps, and tensors, by their hashes ----

// What it was before the first update, and at later looks.
struct Moved {
  std::string first;
  std::vector<std::string> later;
  std::int64_t step = 0;  // of the first later one
};
using MovedByName = std::map<std::string, Moved>;
MovedByName moved_by_name(const trace::ParticipantTrace& rank) {
  MovedByName all;
  for (const auto& at : rank.latest<trace::Moving>())
    for (const auto& value : at.event->values) {
      auto& one = all[value.name];
      if (one.later.empty()) one.step = at.step;
      one.first = value.first;
      one.later.push_back(value.now);
    }
  return all;
}

// Each rank's, of one name: all began with the same, and at each later look some rank has another.
bool have_moved_apart(const std::vector<const Moved*>& ranks) {
  const auto& first = *ranks.front();
  for (const auto* rank : ranks)
    if (rank == nullptr || rank->first != first.first || rank->later.size() != first.later.size())
      return false;
  for (std::size_t look = 0; look < first.later.size(); ++look)
    if (std::all_of(ranks.begin(), ranks.end(),
                    [&](const Moved* rank) { return rank->later[look] == first.later[look]; }))
      return false;
  return true;
}

std::optional<Finding> moved_apart(const Run& run, const std::vector<MovedByName>& ranks) {
  std::vector<std::string> names, now;
  std::int64_t step = 0;
  for (const auto& [name, first] : ranks.front()) {
    std::vector<const Moved*> all;
    for (const auto& rank : ranks) {
      const auto its = rank.find(name);
      all.push_back(its == rank.end() ? nullptr : &its->second);
    }
    if (!have_moved_apart(all)) continue;
    if (names.empty()) {
      for (const auto* rank : all) now.push_back(rank->later.back());
      step = first.step;
    }
    names.push_back(name);
  }
  if (names.empty()) return std::nullopt;
  return Finding{.severity = Severity::advice,
                 .ranks = odd_ones_out(run.numbers, now),
                 .step = std::max<std::int64_t>(step - 1, 0),
                 .evidence = fmt::format("{} {} the same on all ranks before the first update, and "
                                         "{} by rank since: each rank may move it by its own data",
                                         some_of(names), names.size() > 1 ? "were" : "was",
                                         names.size() > 1 ? "differ" : "differs"),
                 .after = -1};
}

Verdict outside_parameters_differ(const Run& run) {
  if (!train_one_model(run)) return not_triggered(kNotOneModel);
  const auto holders = by_holder(run);
  std::vector<MovedByName> moving;
  for (const auto* rank : run.ranks) moving.push_back(moved_by_name(*rank));
  if (holders.empty() && moving.front().empty())
    return not_triggered("no parameters beside the model were recorded of all ranks");
  if (shares_out_a_model(run))
    return not_triggered("the ranks send each other different things: they may share out a model");
  std::map<std::string, Finding> found;  // by holder
  for (const auto& [name, steps] : holders) {
    // A copy that nobody moves is of no use.
    if (name == kModelStatistics || (Holder{name}.kept && !move(steps))) continue;
    if (auto finding = apart_for_good(run, Holder{name}, steps))
      found.emplace(name, std::move(*finding));
  }
  Verdict verdict = clean();
  for (auto& [name, finding] : found) {
    // Of a module that is named itself: training may begin to call late what it kept.
    const Holder holder{name};
    if (holder.buffers && found.count(name.substr(kBuffers.size())) > 0) continue;
    if (holder.kept && found.count(name.substr(kKept.size())) > 0) continue;
    verdict.state = State::found;
    verdict.findings.push_back(std::move(finding));
  }
  if (auto finding = moved_apart(run, moving)) {
    verdict.state = State::found;
    verdict.findings.push_back(std::move(*finding));
  }
  return verdict;
}

}  // namespace
}  // namespace lockstep::diagnose
