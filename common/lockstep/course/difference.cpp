#include <lockstep/base/text.h>
#include <lockstep/course/cpp_text.h>
#include <lockstep/course/diff.h>
#include <lockstep/course/difference.h>
#include <lockstep/course/narrow.h>
#include <lockstep/course/terminal.h>

#include <functional>

namespace lockstep::course {
namespace {

using SayHead = std::function<std::string(const std::string&, Colour)>;
using SayLine = std::function<std::string(const DiffLine&)>;

std::string difference(const std::string& slug, const Code& code, const SayHead& head,
                       const SayLine& say) {
  const auto file = slug + ".cpp";
  std::string text = head("--- a/" + file + "\n+++ b/" + file, Colour::bold) + "\n";
  for (const auto& hunk : hunks_between(code.broken, code.right)) {
    text += head(head_of(hunk), Colour::cyan) + "\n";
    for (const auto& line : hunk.lines) text += say(line);
  }
  return text;
}

std::string folded(const DiffLine& line) {
  std::string text;
  char margin = line.sign;
  for (const auto& part : lines_of(narrowed(line.text + "\n", kColumns - 1))) {
    const auto shown = margin + part;
    text += (line.sign == '-'   ? coloured(shown, Colour::red)
             : line.sign == '+' ? coloured(shown, Colour::green)
                                : shown) +
            "\n";
    margin = '>';
  }
  return text;
}

}  // namespace

std::string patch_of(const std::string& slug, const Code& code) {
  return difference(
      slug, code, [](const std::string& text, Colour) { return text; },
      [](const DiffLine& line) { return line.sign + line.text + "\n"; });
}

std::string readable_patch_of(const std::string& slug, const Code& code) {
  return difference(slug, code, coloured, folded);
}

}  // namespace lockstep::course
