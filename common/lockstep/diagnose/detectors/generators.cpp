// The states of random generators: on all ranks the same, though what they train on differs, or the same again.
#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/differences.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/readings.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace lockstep::diagnose {
namespace {
Verdict same_random_draws(const Run& run);
}  // namespace

std::vector<Detector> generators_detectors() {
  return {
      // Advice. Needs `random_state` of every rank, before and after two stretches of updates, and both gradients.
      // Rule: from some update on the state of a generator is the same on all ranks before and after each that was
      // looked at, and moves, while the ranks' gradients differ; and all ranks began with other states. Not fooled by
      // equal seeds of generators that nothing is drawn from in a step, by what a sampler draws for a pass, nor by ranks
      // that train on the same data.
      {.slug = "same-random-draws",
       .equation = Equation::random_numbers,
       .whole = true,
       .needs = {"random_state", "local_gradients", "reduced_gradients"},
       .participants = Participants::ranks,
       .detect = same_random_draws},
  };
}

namespace {
// After each probed update the states of the rank's generators: by step, by generator.
using States = std::map<std::int64_t, std::map<std::string, std::uint64_t>>;

// Tells `see` the step, the generator and the hash of each state of these.
template <class See>
void each_state(const trace::RandomState& told, std::int64_t step, See see) {
  for (std::size_t i = 0; i < std::min(told.generators.size(), told.hashes.size()); ++i)
    see(step, told.generators[i], told.hashes[i]);
}
template <class See>
void each_state(const trace::EventsOf<trace::RandomState>& told, See see) {
  for (const auto& at : told) each_state(*at.event, at.step, see);
}

States states_of(const trace::ParticipantTrace& rank) {
  States states;
  each_state(rank.latest<trace::RandomState>(),
             [&](std::int64_t step, const std::string& generator, std::uint64_t state) {
               states[step][generator] = state;
             });
  return states;
}

std::optional<std::uint64_t> state_at(const States& states, std::int64_t step,
                                      const std::string& generator) {
  const auto found = states.find(step);
  if (found == states.end()) return {};
  const auto state = found->second.find(generator);
  return state == found->second.end() ? std::nullopt : std::optional(state->second);
}

// The updates at which a pass begins: samplers and loaders draw for it, too.
std::set<std::int64_t> pass_steps(const trace::ParticipantTrace& rank) {
  std::set<std::int64_t> steps;
  for (const auto& at : rank.latest<trace::PassBegin>()) steps.insert(at.step);
  return steps;
}

// What the ranks train on differs: their local gradients do.
bool train_on_other_data(const Run& run) {
  const auto& steps = gradient_steps(run);
  return !steps.empty() && std::all_of(steps.begin(), steps.end(), [](const GradientStep& step) {
    return std::all_of(step.local.begin() + 1, step.local.end(), [&](const Vector& gradient) {
      return distance(gradient, step.local.front()) > kRounding;
    });
  });
}

// The steps in or behind which all ranks came from one state of a generator to another one, as far as was looked: between
// them something was drawn. None of those before a step where it is not so. None at all where nothing was drawn at some
// step: it draws now and then, for another purpose.
std::vector<std::int64_t> drawn_alike(const std::vector<States>& ranks,
                                      const std::string& generator,
                                      const std::set<std::int64_t>& passes) {
  std::vector<std::int64_t> drawn;
  const auto is_alike = [&](std::int64_t step) {
    return std::ranges::all_of(ranks, [&](const States& of_rank) {
      return state_at(of_rank, step, generator) == state_at(ranks.front(), step, generator);
    });
  };
  std::optional<std::int64_t> last;
  for (const auto& [step, states] : ranks.front()) {
    const auto after = state_at(ranks.front(), step, generator);
    if (!after) continue;
    const auto looked = std::exchange(last, step);
    if (!looked) continue;
    const auto pass = passes.upper_bound(*looked);
    if (pass != passes.end() && *pass <= step) continue;
    if (state_at(ranks.front(), *looked, generator) == after) {
      if (*looked + 1 == step) return {};
    } else if (is_alike(*looked) && is_alike(step)) {
      drawn.push_back(*looked + 1);
    } else {
      drawn.clear();
    }
  }
  return drawn;
}

// The ranks' generators began in states of their own, in the first attempt: what they draw was meant to differ.
bool once_differed(const Run& run, const std::string& generator) {
  std::set<std::optional<std::uint64_t>> different;
  for (const auto* rank : run.ranks) {
    std::optional<std::uint64_t> first;
    each_state(rank->all<trace::RandomState>(),
               [&](std::int64_t, const std::string& of, std::uint64_t state) {
                 if (of == generator && !first) first = state;
               });
    different.insert(first);
  }
  return different.size() == run.ranks.size();
}

// Of a generator, the updates for which all ranks drew the same: two or more.
struct DrawnAlike {
  std::string generator;
  std::vector<std::int64_t> steps;
  std::string text(const char* which) const {
    return fmt::format(
        "the generators of all ranks ({}) are in the same state at {}{} one after another, and "
        "moved "
        "between them",
        generator, which, plural(static_cast<std::int64_t>(steps.size() + 1), "look"));
  }
};
std::vector<DrawnAlike> all_drawn_alike(const Run& run) {
  constexpr std::size_t kEnoughSteps = 2;
  std::vector<States> ranks;
  for (const auto* rank : run.ranks) ranks.push_back(states_of(*rank));
  std::set<std::string> generators;
  for (const auto& [step, states] : ranks.front())
    for (const auto& [generator, state] : states) generators.insert(generator);
  std::vector<DrawnAlike> all;
  for (const auto& generator : generators)
    if (auto steps = drawn_alike(ranks, generator, pass_steps(*run.ranks.front()));
        steps.size() >= kEnoughSteps)
      all.push_back({generator, std::move(steps)});
  return all;
}

std::vector<Finding> same_draws(const Run& run) {
  for (const auto& alike : all_drawn_alike(run))
    if (once_differed(run, alike.generator))
      return {{.severity = Severity::advice,
               .ranks = run.numbers,
               .step = alike.steps.front(),
               .evidence = alike.text("the last ") +
                           "; at first they differed: for other data the ranks now draw "
                           "the same random numbers, such as dropout or noise"}};
  return {};
}

Verdict same_random_draws(const Run& run) {
  if (!train_on_other_data(run))
    return not_triggered("the ranks' gradients are not known to differ");
  return among_replicas(run, same_draws);
}

}  // namespace

std::optional<Reading> drawn_from_one_state(const Run& run) {
  const auto alike = train_on_other_data(run) ? all_drawn_alike(run) : std::vector<DrawnAlike>{};
  if (alike.empty()) return {};
  return Reading{alike.front().text("") +
                     ": for other data the ranks draw the same "
                     "random numbers, such as dropout or noise",
                 "what is drawn may be the same for other samples", alike.front().steps.front()};
}

std::optional<Reading> drawn_again(const Run& run) {
  std::optional<Reading> again;
  for (const auto* rank : run.ranks) {
    std::map<std::string, std::map<std::uint64_t, std::int64_t>> known;  // the last step of each
    std::map<std::string, std::uint64_t> before;
    const auto see = [&](std::int64_t step, const std::string& generator, std::uint64_t state) {
      const auto had = known[generator].find(state);
      const bool repeats = had != known[generator].end() && before[generator] != state;
      if (repeats && (!again || step < again->step))
        again = Reading{fmt::format("after update {} the generator {} is in the state that it had "
                                    "after update {}, and was in others between: the numbers that "
                                    "it gave then come again",
                                    step, generator, had->second),
                        "they are meant to come again", step};
      if (repeats && step == again->step)
        if (auto& ranks = again->ranks; ranks.empty() || ranks.back() != rank->participant.rank)
          ranks.push_back(rank->participant.rank);
      known[generator][state] = step;
      before[generator] = state;
    };
    each_of<trace::RandomState, trace::Model, trace::Engine>(
        *rank, rank->last_attempt, [&](std::size_t, const trace::Event& event) {
          if (const auto* told = event.as<trace::RandomState>())
            each_state(*told, event.step, see);
          else
            known.clear(), before.clear();  // another model begins
        });
  }
  return again;
}

}  // namespace lockstep::diagnose
