#include <lockstep/base/text.h>
#include <lockstep/compare/aspects.h>
#include <lockstep/compare/compare.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>

namespace lockstep::compare {
namespace {

// At least one of these must have been compared, or the answer is undecided.
constexpr std::array kOfTraining = {Aspect::loss, Aspect::local_gradients,
                                    Aspect::reduced_gradients, Aspect::update};

std::optional<std::int64_t> first_rounding(const std::vector<AspectResult>& aspects) {
  std::optional<std::int64_t> first;
  for (const auto& aspect : aspects)
    if (!aspect.distances.empty() && (!first || aspect.distances.front().step < *first))
      first = aspect.distances.front().step;
  return first;
}

// Null: none differs. At one step a checkpoint counts before the others.
const AspectResult* first_of(const std::vector<AspectResult>& aspects) {
  const AspectResult* first = nullptr;
  for (const auto& aspect : aspects)
    if (aspect.first &&
        (first == nullptr || aspect.first->step < first->first->step ||
         (aspect.first->step == first->first->step && aspect.aspect == Aspect::checkpoint)))
      first = &aspect;
  return first;
}

// The last step, before the first difference, at which tensors, losses or ids were compared.
std::optional<std::int64_t> agreement_before(const Comparison& comparison) {
  std::optional<std::int64_t> last;
  for (const auto& aspect : comparison.aspects)
    for (const auto step : aspect.steps) {
      if (comparison.first && step >= comparison.of(*comparison.first).first->step) break;
      if (step >= 0 && (!last || step > *last)) last = step;
    }
  return last;
}

Answer answer_of(const Comparison& comparison) {
  if (comparison.first) return Answer::different;
  bool looked = false, rounded = false;
  for (const auto aspect : kOfTraining) {
    const auto& result = comparison.of(aspect);
    looked = looked || !result.steps.empty();
    if (result.probes_apart()) return Answer::undecided;
  }
  for (const auto& result : comparison.aspects)
    rounded = rounded || result.relation == Relation::rounding;
  if (!looked) return Answer::undecided;
  return rounded ? Answer::rounding : Answer::equal;
}

// Steps after which the parameters were compared, before the first at which they differ.
std::set<std::int64_t> calm_steps(const Pair& pair) {
  Ledger ledger(Aspect::update);
  compare_updates(pair, ledger);
  const auto updates = ledger.done();
  std::set<std::int64_t> calm;
  for (const auto step : updates.steps)
    if (!updates.first || step < updates.first->step) calm.insert(step);
  return calm;
}

using LookAtGradients = void (*)(const Pair&, const std::set<std::int64_t>&, Ledger&);

void compare_gradients(const Pair& pair, LookAtGradients look, Ledger& to) {
  Ledger strict(Aspect::local_gradients);
  look(pair, {}, strict);
  const auto found = strict.done();
  const bool rare = found.differing_steps * diagnose::kRareCorner <= found.steps.size();
  look(pair, rare ? calm_steps(pair) : std::set<std::int64_t>{}, to);
}

std::string cause_text(const Difference& cause) {
  return cause.what + ": " + cause.a + " in A, " + cause.b + " in B" +
         (cause.ranks.empty() ? "" : " (" + ranks_text(cause.ranks) + ")");
}

// A setting that differs is the first cause where the training differs; where it does not, it is a note.
void add_causes(const Pair& pair, Comparison& comparison) {
  const auto causes = compare_causes(pair);
  auto& setup = comparison.aspects[static_cast<std::size_t>(Aspect::configuration)];
  const bool differs = first_of(comparison.aspects) != nullptr;
  for (const auto& cause : causes) {
    if (!differs) {
      comparison.notes.push_back("set up differently, and trains the same: " + cause_text(cause));
    } else if (!setup.first) {
      setup.first = cause;
      setup.relation = Relation::different;
      setup.differing_steps = 1;
    } else {
      ++setup.more;
    }
  }
}

void add_notes(const Pair& pair, Comparison& comparison) {
  for (const auto& text : compare_surroundings(pair))
    comparison.notes.push_back("other surroundings: " + text);
  if (auto text = compare_names(pair)) comparison.notes.push_back(std::move(*text));
  if (!pair.same_ranks)
    comparison.notes.push_back("the runs have " + std::to_string(comparison.ranks_a) + " and " +
                               std::to_string(comparison.ranks_b) +
                               " ranks: compared is what must be equal all the same (ids of a "
                               "step, means of losses and gradients, the "
                               "parameters of the first rank)");
  for (const auto* run : {&pair.a, &pair.b}) {
    const std::string name = run == &pair.a ? "A" : "B";
    if (!run->complete)
      comparison.notes.push_back("the trace of a rank of " + name + " is missing");
    for (const auto* rank : run->ranks)
      if (rank->truncated || !rank->closed) {
        comparison.notes.push_back("the trace of rank " + std::to_string(rank->participant.rank) +
                                   " of " + name +
                                   " does not end in order: its process was ended, or still runs");
        break;
      }
  }
}

}  // namespace

const char* to_string(Aspect aspect) {
  constexpr std::array<const char*, kAspects> names = {"configuration",
                                                       "data",
                                                       "random",
                                                       "initial",
                                                       "mode",
                                                       "loss",
                                                       "local_gradients",
                                                       "reduced_gradients",
                                                       "hyper_parameters",
                                                       "update",
                                                       "buffers",
                                                       "metric",
                                                       "checkpoint"};
  return names.at(static_cast<std::size_t>(aspect));
}

const char* to_string(Relation relation) {
  return relation == Relation::equal      ? "equal"
         : relation == Relation::rounding ? "rounding"
                                          : "different";
}

const char* to_string(Answer answer) {
  constexpr std::array<const char*, 4> names = {"equal", "rounding", "different", "undecided"};
  return names.at(static_cast<std::size_t>(answer));
}

Comparison compare(const trace::Trace& a, const trace::Trace& b) {
  const diagnose::Run run_a(a), run_b(b);
  const Pair pair(run_a, run_b);
  Comparison comparison{.ranks_a = a.world_size,
                        .ranks_b = b.world_size,
                        .updates_a = pair.updates_a,
                        .updates_b = pair.updates_b,
                        .unit = pair.unit,
                        .aspects = {},
                        .notes = {}};
  auto& aspects = comparison.aspects;
  const auto add = [&](Aspect aspect, const std::function<void(Ledger&)>& look) {
    Ledger ledger(aspect);
    look(ledger);
    aspects.push_back(ledger.done());
  };
  Ledger random(Aspect::random);
  compare_random(pair, random);
  const auto numbers = random.done();
  add(Aspect::configuration, [&](Ledger& to) { compare_setup(pair, to); });
  add(Aspect::data, [&](Ledger& to) {
    compare_data(pair, to);
    compare_inputs(pair, numbers.first ? std::optional(numbers.first->step) : std::nullopt, to);
  });
  aspects.push_back(numbers);
  add(Aspect::initial, [&](Ledger& to) { compare_initial(pair, to); });
  add(Aspect::mode, [&](Ledger& to) { compare_modes(pair, to); });
  add(Aspect::loss, [&](Ledger& to) { compare_losses(pair, to); });
  add(Aspect::local_gradients,
      [&](Ledger& to) { compare_gradients(pair, compare_local_gradients, to); });
  add(Aspect::reduced_gradients,
      [&](Ledger& to) { compare_gradients(pair, compare_reduced_gradients, to); });
  add(Aspect::hyper_parameters, [&](Ledger& to) { compare_hyper_parameters(pair, to); });
  add(Aspect::update, [&](Ledger& to) { compare_updates(pair, to); });
  add(Aspect::buffers, [&](Ledger& to) { compare_buffers(pair, to); });
  add(Aspect::metric, [&](Ledger& to) { compare_metrics(pair, to); });
  add(Aspect::checkpoint, [&](Ledger& to) {
    const auto* differs = first_of(aspects);
    compare_checkpoints(pair, first_rounding(aspects),
                        differs ? std::optional(differs->first->step) : std::nullopt, to);
  });
  add_causes(pair, comparison);
  if (const auto* first = first_of(aspects)) comparison.first = first->aspect;
  comparison.answer = answer_of(comparison);
  comparison.agree_until = agreement_before(comparison);
  add_notes(pair, comparison);
  return comparison;
}

}  // namespace lockstep::compare
