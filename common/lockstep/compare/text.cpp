#include <lockstep/base/text.h>
#include <lockstep/compare/compare.h>
#include <lockstep/compare/ledger.h>

#include <algorithm>
#include <cstdint>

namespace lockstep::compare {
namespace {

std::string words_of(Aspect aspect) {
  std::string words = to_string(aspect);
  std::replace(words.begin(), words.end(), '_', aspect == Aspect::hyper_parameters ? '-' : ' ');
  return words;
}

std::string step_text(std::int64_t step) {
  return step < 0 ? "before training" : "step " + std::to_string(step);
}

std::string difference_text(const Difference& difference) {
  std::string text = step_text(difference.step);
  if (!difference.ranks.empty()) text += ", " + ranks_text(difference.ranks);
  text += ": " + difference.what + ": " + difference.a + " in A, " + difference.b + " in B";
  if (difference.tolerance > 0)
    text += "; apart by " + number_text(difference.distance) + ", tolerance " +
            number_text(difference.tolerance);
  return text;
}

std::string steps_text(const std::vector<std::int64_t>& steps) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(steps.size(), kShown); ++i)
    text += (i ? ", " : "") + std::to_string(steps[i]);
  return text + (steps.size() > kShown ? ", ..." : "");
}

// The last step at which it was compared and agrees, before its first difference.
std::optional<std::int64_t> last_equal(const AspectResult& aspect) {
  std::optional<std::int64_t> last;
  for (const auto step : aspect.steps)
    if (step < aspect.first->step) last = step;
  return last;
}

std::string largest_text(const AspectResult& aspect) {
  if (aspect.distances.empty()) return "";
  const auto largest = std::max_element(
      aspect.distances.begin(), aspect.distances.end(), [](const auto& a, const auto& b) {
        return a.distance / a.tolerance < b.distance / b.tolerance;
      });
  return "; nearest to its tolerance at " + step_text(largest->step) + ": " +
         number_text(largest->distance) + " of " + number_text(largest->tolerance);
}

std::string row_text(const AspectResult& aspect) {
  if (!aspect.in_a && !aspect.in_b && !aspect.first) return "not recorded";
  if (!aspect.first && aspect.steps.empty()) {
    if (aspect.in_a && aspect.in_b) return "recorded in both, never at the same step";
    return std::string("recorded in ") + (aspect.in_a ? "A" : "B") + " only";
  }
  if (aspect.first) return "different, " + difference_text(*aspect.first);
  const auto where = plural(static_cast<std::int64_t>(aspect.steps.size()), "step");
  if (aspect.relation == Relation::equal) return "equal to the bit, " + where;
  return "equal to rounding, " + where + largest_text(aspect);
}

void add_first(const Comparison& comparison, const std::string& lockstep, std::string& text) {
  const auto& first = comparison.of(*comparison.first);
  text += filled("first: " + words_of(first.aspect) + ", " + difference_text(*first.first), 2);
  if (first.more > 0)
    text += filled("  and " + plural(static_cast<std::int64_t>(first.more), "more difference") +
                       " of this kind there",
                   2);
  const auto last = last_equal(first);
  if (last && first.first->step > *last + 1)
    text += filled(
        "  It was last compared, and the same, at step " + std::to_string(*last) +
            ": it began somewhere between. To know where, record both runs once more with every "
            "step probed there: " +
            lockstep + " watch --every 1 --from " + std::to_string(*last + 1) + " --to " +
            std::to_string(first.first->step) + " -- COMMAND",
        2);
}

void add_rows(const Comparison& comparison, std::string& text) {
  constexpr std::size_t kColumn = 19;
  for (const auto& aspect : comparison.aspects) {
    if (comparison.first == aspect.aspect) continue;
    auto name = "  " + words_of(aspect.aspect);
    name.resize(std::max(name.size() + 2, kColumn + 2), ' ');
    text += filled(name + row_text(aspect), 2);
  }
}

void add_probes(const Comparison& comparison, std::string& text) {
  for (const auto& aspect : comparison.aspects) {
    if (aspect.only_a.empty() && aspect.only_b.empty()) continue;
    std::string said = "note: " + words_of(aspect.aspect) + " probed on different steps:";
    if (!aspect.only_a.empty())
      said += " " + steps_text(aspect.only_a) + " in A only" + (aspect.only_b.empty() ? "" : ",");
    if (!aspect.only_b.empty()) said += " " + steps_text(aspect.only_b) + " in B only";
    if (aspect.probes_apart())
      said += "; to compare these too, record both runs with the same --every, --from and --to";
    text += filled(said, 2);
  }
}

std::string next_text(const Comparison& comparison, const std::string& a, const std::string& b,
                      const std::string& lockstep) {
  if (comparison.answer == Answer::undecided)
    return "next: record both runs in the same way, with their optimizers and models seen "
           "(docs/diagnose.md), and with probes on the same steps: the same --every, --from and "
           "--to of " +
           lockstep + " watch.";
  if (comparison.answer == Answer::different)
    return "next: " + lockstep + " diagnose " + a + " and " + lockstep + " diagnose " + b +
           " say whether one has a pitfall with a name.";
  return "";
}

}  // namespace

std::string verdict_text(const Comparison& comparison) {
  switch (comparison.answer) {
    case Answer::equal:
      return "A and B are equal to the bit, in all that was compared.";
    case Answer::rounding:
      return "A and B are equal to rounding.";
    case Answer::undecided:
      return "It cannot be decided whether A and B are the same training.";
    case Answer::different:
      break;
  }
  const auto until = comparison.agree_until;
  return until ? "A and B agree until step " + std::to_string(*until) + ", then they differ."
               : "A and B differ from the beginning.";
}

std::string to_text(const Comparison& comparison, const std::string& a, const std::string& b,
                    const std::string& lockstep) {
  const auto run = [](const char* letter, const std::string& name, int ranks,
                      std::int64_t updates) {
    return filled(std::string(letter) + ": " + name + " (" + plural(ranks, "rank") + ", " +
                      plural(updates, "update") + ")",
                  2);
  };
  auto text = run("A", a, comparison.ranks_a, comparison.updates_a) +
              run("B", b, comparison.ranks_b, comparison.updates_b) + verdict_text(comparison) +
              "\n";
  if (comparison.first) {
    add_first(comparison, lockstep, text);
    text += "What else was compared, in the order of causes:\n";
  }
  add_rows(comparison, text);
  text += filled("tolerance: relative, grows with the steps from " + number_text(comparison.unit) +
                     ", half a unit of the parameters' numbers (docs/compare.md#the-tolerance)",
                 2);
  add_probes(comparison, text);
  for (const auto& note : comparison.notes) text += filled("note: " + note, 2);
  if (const auto next = next_text(comparison, a, b, lockstep); !next.empty())
    text += filled(next, 2);
  return text;
}

}  // namespace lockstep::compare
