#include <lockstep/base/text.h>
#include <lockstep/compare/compare.h>
#include <lockstep/compare/seen.h>
#include <lockstep/diagnose/text.h>

namespace lockstep::compare {
namespace {

std::string closer_text(const diagnose::Line& line, const std::string& lockstep) {
  if (line.after < 0 || line.step == line.after + 1) return "";
  return wrapped(
      "It began somewhere between. To know where, record both runs once more with every step "
      "probed there: " +
          lockstep + " watch --every 1 --from " + std::to_string(line.after + 1) + " --to " +
          std::to_string(line.step) + " -- COMMAND",
      "    ");
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
    const auto& line = comparison.of(*comparison.first).line;
    text += "They part first in this:\n" + diagnose::to_text(line) + closer_text(line, lockstep);
  }
  text += comparison.first ? "What else must hold, and whether A and B agree in it:\n"
                           : "What must hold, and whether A and B agree in it:\n";
  for (const auto& each : comparison.ledger)
    if (comparison.first != each.line.equation) text += diagnose::to_text(each.line);
  text += filled("tolerance: relative, grows with the steps from " + number_text(comparison.unit) +
                     ", half a unit of the parameters' numbers (docs/compare.md#the-tolerance)",
                 2);
  for (const auto& note : comparison.notes) text += filled("note: " + note, 2);
  if (const auto next = next_text(comparison, a, b, lockstep); !next.empty())
    text += filled(next, 2);
  return text;
}

}  // namespace lockstep::compare
