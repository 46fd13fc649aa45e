#include <lockstep/base/text.h>
#include <lockstep/compare/compare.h>
#include <lockstep/compare/looks.h>
#include <lockstep/diagnose/differences.h>

#include <algorithm>
#include <array>

namespace lockstep::compare {
namespace {

using diagnose::Equation;
using diagnose::Standing;

// At least one of these must have been compared, or the answer is undecided.
constexpr std::array kOfTraining = {Equation::loss_weights, Equation::mean_gradient,
                                    Equation::all_moved, Equation::equal_after};

// The step at which any equation parts; nothing: none does.
std::optional<std::int64_t> first_difference(const Ledger& ledger) {
  std::optional<std::int64_t> first;
  for (const auto& seen : ledger)
    if (const auto at = seen.parts_at(); at && (!first || *at < *first)) first = at;
  return first;
}

std::optional<std::int64_t> first_rounding(const Ledger& ledger) {
  std::optional<std::int64_t> first;
  for (const auto& seen : ledger)
    if (const auto& all = seen.so_far().distances;
        !all.empty() && (!first || all.begin()->first < *first))
      first = all.begin()->first;
  return first;
}

// Steps after which the parameters were compared, before the first at which they differ.
Steps calm_steps(const Seen& parameters) {
  const auto& steps = parameters.so_far().steps;
  const auto until = parameters.parts_at();
  return {steps.begin(), until ? steps.find(*until) : steps.end()};
}

// Where corners are rare, none is a difference.
void compare_gradients(const Pair& pair, const Steps& calm, Seen& seen) {
  for (const auto look : {compare_local_gradients, compare_reduced_gradients}) {
    Seen strict;
    look(pair, {}, strict);
    const bool rare =
        strict.differing_steps() * diagnose::kRareCorner <= strict.so_far().steps.size();
    look(pair, rare ? calm : Steps{}, seen);
  }
}

// A setting that differs is a cause where the training differs; where it does not, it is a note.
void compare_settings(const Pair& pair, bool differs, Seen& seen, std::vector<std::string>& notes) {
  std::map<std::string, std::vector<int>> others;
  for_each_other_setting(
      pair, [&](int rank, const std::string& what, const std::string& a, const std::string& b) {
        if (differs) {
          seen.texts({kBefore, rank}, what, a, b);
        } else {
          auto& ranks = others[what + ": " + in_both_text(a, b)];
          if (rank >= 0) ranks.push_back(rank);
        }
      });
  for (const auto& [text, ranks] : others)
    notes.push_back("set up differently, and trains the same: " + text +
                    (ranks.empty() ? "" : " (" + ranks_text(ranks) + ")"));
}

// In order, but for what another look must know.
Ledger look_at_all(const Pair& pair, std::vector<std::string>& notes) {
  Ledger ledger;
  compare_setup(pair, ledger[Equation::equal_settings]);
  compare_start(pair, ledger[Equation::equal_start]);
  auto& random = ledger[Equation::random_numbers];
  compare_random(pair, random);
  auto& samples = ledger[Equation::own_samples];
  compare_samples(pair, samples, ledger[Equation::new_order]);
  compare_inputs(pair, random.parts_at(), samples);
  compare_modes(pair, ledger[Equation::modes]);
  compare_losses(pair, ledger[Equation::loss_weights]);
  Seen after;
  compare_parameters(pair, after);
  compare_gradients(pair, calm_steps(after), ledger[Equation::mean_gradient]);
  compare_clips(pair, ledger[Equation::clipped_once]);
  compare_rates(pair, ledger[Equation::rates]);
  compare_moves(pair, first_difference(ledger), ledger[Equation::all_moved]);
  ledger[Equation::equal_after] = std::move(after);
  compare_buffers(pair, ledger[Equation::buffers]);
  compare_metrics(pair, ledger[Equation::joined_figures]);
  compare_checkpoints(pair, first_rounding(ledger), first_difference(ledger),
                      ledger[Equation::saved_is_held]);
  compare_settings(pair, first_difference(ledger).has_value(), ledger[Equation::equal_settings],
                   notes);
  ledger[Equation::same_calls].cannot(
      "right runs of one training may make other calls: diagnose compares those of each run's "
      "ranks");
  return ledger;
}

// Who was compared with whom.
void tell_ranks(const Pair& pair, diagnose::Line& line) {
  line.reason.clear();
  if (!pair.same_ranks)
    line.reason = "A has " + plural(pair.a.world_size, "rank") + ", B " +
                  std::to_string(pair.b.world_size) +
                  ": compared is what must be equal all the same (ids of a step, means of losses "
                  "and gradients, the parameters of the first rank)";
  for (const auto* run : {&pair.a, &pair.b})
    if (!run->complete)
      line.reason += (line.reason.empty() ? "" : "; ") + std::string("the trace of a rank of ") +
                     (run == &pair.a ? "A" : "B") + " is missing";
  if (!line.reason.empty()) return;
  line.standing = Standing::held;
  line.looked_at = plural(pair.a.world_size, "rank");
}

void add_notes(const Pair& pair, Comparison& comparison) {
  auto& notes = comparison.notes;
  for (const auto& text : compare_surroundings(pair))
    notes.push_back("other surroundings: " + text);
  if (auto text = compare_names(pair)) notes.push_back(std::move(*text));
  for (const auto* run : {&pair.a, &pair.b}) {
    const auto is_cut = [](const auto* rank) { return rank->truncated || !rank->closed; };
    if (const auto cut = std::ranges::find_if(run->ranks, is_cut); cut != run->ranks.end())
      notes.push_back("the trace of rank " + std::to_string((*cut)->participant.rank) + " of " +
                      (run == &pair.a ? "A" : "B") +
                      " does not end in order: its process was ended, or still runs");
  }
  for (const auto& each : comparison.ledger) {
    std::vector<std::string> lonely;
    for (const auto* steps : {&each.only_a, &each.only_b}) {
      std::vector<std::string> texts;
      for (const auto step : *steps) texts.push_back(std::to_string(step));
      if (!texts.empty())
        lonely.push_back(diagnose::some_of(std::move(texts), 8) +
                         (steps == &each.only_a ? " in A only" : " in B only"));
    }
    if (!lonely.empty())
      notes.push_back(std::string(diagnose::text_of(each.line.equation).slug) +
                      " was probed on different steps: " + list(lonely) +
                      (each.probes_apart() ? "; to compare these too, record both runs with the "
                                             "same --every, --from and --to"
                                           : ""));
  }
}

Answer answer_of(const Comparison& comparison) {
  if (comparison.first) return Answer::different;
  bool looked = false;
  for (const auto equation : kOfTraining) {
    const auto& of = comparison.of(equation);
    looked = looked || !of.steps.empty();
    if (of.probes_apart()) return Answer::undecided;
  }
  if (!looked) return Answer::undecided;
  return std::ranges::all_of(comparison.ledger, &Compared::to_the_bit) ? Answer::equal
                                                                       : Answer::rounding;
}

}  // namespace

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
                        .ledger = {},
                        .notes = {}};
  const auto ledger = look_at_all(pair, comparison.notes);
  const auto first = first_difference(ledger);
  for (const auto& seen : ledger) {
    const auto equation = static_cast<Equation>(comparison.ledger.size());
    comparison.ledger.push_back(seen.done(equation, pair));
    auto& compared = comparison.ledger.back();
    if (equation == Equation::one_job) tell_ranks(pair, compared.line);
    const bool is_first = first && compared.parts() && compared.line.step == *first;
    if (is_first && (!comparison.first || equation == Equation::saved_is_held))
      comparison.first = equation;
    for (const auto step : compared.steps)
      if (step >= 0 && (!first || step < *first) && step > comparison.agree_until.value_or(-1))
        comparison.agree_until = step;
  }
  comparison.answer = answer_of(comparison);
  add_notes(pair, comparison);
  return comparison;
}

}  // namespace lockstep::compare
