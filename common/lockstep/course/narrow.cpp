#include <lockstep/course/cpp_text.h>
#include <lockstep/course/narrow.h>

#include <algorithm>
#include <sstream>
#include <tuple>

namespace lockstep::course {
namespace {

constexpr std::size_t kContinued = 4;  // columns that what follows a break is indented by

// Words in lines that begin with `prefix`.
std::string comment_lines(const std::string& words, const std::string& prefix, std::size_t width) {
  std::istringstream in(words);
  std::string result, line = prefix;
  for (std::string word; in >> word; line += " " + word)
    if (line.size() > prefix.size() && line.size() + 1 + word.size() > width) {
      result += line + "\n";
      line = prefix;
    }
  return result + line + "\n";
}

// The space at which a line is best broken: as far outside of brackets as can be, rather behind a comma or `=` than
// before an operator, and at any other only where there is none of these. kNowhere if there is no space.
std::size_t break_of(const std::string& line, std::size_t width) {
  const auto code = code_only(line);
  std::size_t found = kNowhere;
  auto least = std::tuple(kNowhere, kNowhere, kNowhere);
  bool in_literal = false;
  std::size_t depth = 0;
  for (std::size_t i = indent_at(line, 0); i <= width && i + 1 < line.size(); ++i) {
    if (code[i] == '"') in_literal = !in_literal;
    depth += std::string_view("({[").find(code[i]) != kNowhere;
    depth -= std::string_view(")}]").find(code[i]) != kNowhere && depth > 0;
    if (code[i] != ' ' || in_literal || i < 2 || code[i - 1] == ' ') continue;
    const char last = code[i - 1], next = code[i + 1];
    const bool assigns = last == '=' && std::string_view("=!<>").find(code[i - 2]) == kNowhere;
    const bool good = assigns || last == ',' || last == ';';
    const bool fair = std::string_view("&|?:+<").find(next) != kNowhere;
    const auto badness =
        std::tuple<std::size_t, std::size_t, std::size_t>(!good && !fair, depth, !good);
    if (badness > least) continue;
    least = badness;
    found = i;
  }
  return found;
}

}  // namespace

std::string narrowed(const std::string& code, std::size_t width) {
  std::string result;
  for (auto line : lines_of(code)) {
    const std::string indent(indent_at(line, 0), ' ');
    if (line.size() > width) {  // a comment first, in lines of its own
      const auto end = code_only(line).find_last_not_of(' ');
      const auto begin = line.find("//", end == kNowhere ? 0 : end + 1);
      if (begin != kNowhere) {
        result += comment_lines(line.substr(begin + 2), indent + "//", width);
        line.resize(end == kNowhere ? 0 : end + 1);
        if (line.empty()) continue;
      }
    }
    for (std::size_t at; line.size() > width && (at = break_of(line, width)) != kNowhere;) {
      result += line.substr(0, at) + "\n";
      line = indent + std::string(kContinued, ' ') + line.substr(at + 1);
    }
    const auto over = line.size() - std::min(line.size(), width);  // such as a long literal
    result += line.substr(std::min(over, indent_at(line, 0))) + "\n";
  }
  return result;
}

}  // namespace lockstep::course
