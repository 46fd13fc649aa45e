#include <lockstep/base/error.h>
#include <lockstep/course/cpp_text.h>
#include <lockstep/course/fold.h>

#include <algorithm>
#include <regex>

namespace lockstep::course {
namespace {

struct Range {
  std::size_t begin, end;
};

std::string in(const std::string& text, Range range) {
  return text.substr(range.begin, range.end - range.begin);
}

void replace(std::string& text, Range range, const std::string& by) {
  text.replace(range.begin, range.end - range.begin, by);
}

// Whether a condition of switches holds, and what it asks besides.
struct Answer {
  bool holds = false;
  std::string besides;
};

Answer answer(const std::string& condition, const std::string& slug) {
  static const std::regex asked(R"rx(^\s*(!?)fault\(\s*"([a-z0-9-]+)"\s*\)\s*(\|\||&&|$))rx");
  Answer result;
  auto rest = condition;
  for (std::smatch found; std::regex_search(rest, found, asked); rest = found.suffix().str()) {
    result.holds = result.holds || (found[2] == slug) == (found[1] != "!");
    if (found[3] == "||") continue;
    if (found[3] == "&&" && rest.size() < condition.size()) break;  // a || b && c
    result.besides = found.suffix();
    return result;
  }
  throw Error("not to be folded: if (" + condition + ")");
}

void fold_if(std::string& text, std::size_t begin, const std::string& slug) {
  const auto code = code_only(text);
  const auto open = code.find('(', begin), close = closing(code, open);
  const auto [holds, besides] = answer(in(text, {open + 1, close}), slug);
  if (holds && !besides.empty())
    return replace(text, {open + 1, close}, besides.substr(besides.find_first_not_of(" \n")));

  const Range whole{begin, end_of_statement(code, begin)};
  Range chosen{next_code(code, close + 1), end_of_statement(code, close + 1)};
  const auto other = next_code(code, chosen.end);
  if (!holds)
    chosen = {word_at(code, other, "else") ? next_code(code, other + 4) : whole.end, whole.end};
  const bool is_braced = code[chosen.begin] == '{';
  const Range content{line_end(text, chosen.begin), line_begin(text, chosen.end - 1)};
  const bool is_empty = chosen.begin == chosen.end || (is_braced && content.begin >= content.end);

  const auto before = previous_code(code, begin);
  if (word_at(code, before - 3, "else")) {
    const auto end_before = previous_code(code, before - 3) + 1;
    return is_empty ? replace(text, {end_before, whole.end}, "")
                    : replace(text, whole, in(text, chosen));
  }
  if (std::string_view("{};").find(code[before]) == kNowhere)
    throw Error("not to be folded, for it is in no block: " + in(text, whole));
  const Range lines{line_begin(text, begin), line_end(text, whole.end)};
  if (is_empty)
    replace(text, {with_comment_above(text, lines.begin), lines.end}, "");
  else if (is_braced &&
           code.substr(chosen.begin, chosen.end - chosen.begin).find("Guard ") == kNowhere)
    replace(text, lines,
            dedented(in(text, content), indent_at(text, content.begin) - indent_at(text, begin)));
  else
    replace(text, whole,
            dedented(in(text, chosen), indent_at(text, chosen.begin) - indent_at(text, begin)));
}

// Behind the operand of a ?: that begins at `at`.
std::size_t end_of_operand(const std::string& code, std::size_t at) {
  for (; at < code.size() && std::string_view(":;,)}").find(code[at]) == kNowhere; ++at) {
    if (std::string_view("({[").find(code[at]) != kNowhere) at = closing(code, at);
    if (code.compare(at + 1, 2, "::") == 0) at += 2;
  }
  return at;
}

void fold_choice(std::string& text, Range asked, const std::string& slug) {
  const auto code = code_only(text);
  const auto colon = end_of_operand(code, asked.end), end = end_of_operand(code, colon + 1);
  const bool holds = answer(in(text, {asked.begin, asked.end - 1}), slug).holds;
  Range chosen = holds ? Range{asked.end, colon} : Range{colon + 1, end};
  chosen = {next_code(code, chosen.begin), previous_code(code, chosen.end) + 1};
  const auto before = previous_code(code, asked.begin);
  if (std::string_view("=(,{").find(code[before]) == kNowhere &&
      !(before >= 5 && word_at(code, before - 5, "return")))
    throw Error("not to be folded: " + in(text, {line_begin(text, asked.begin), end}));
  // Without a space left beside `=`.
  if (code[before] == '=')
    replace(text, {before + 1, end}, " " + in(text, chosen));
  else
    replace(text, {asked.begin, end}, in(text, chosen));
}

// The last match, of which no other is a part.
bool find_last(const std::string& code, const std::regex& wanted, Range& found) {
  bool any = false;
  for (std::sregex_iterator it(code.begin(), code.end(), wanted), none; it != none;
       ++it, any = true)
    found = {static_cast<std::size_t>(it->position()),
             static_cast<std::size_t>(it->position() + it->length())};
  return any;
}

// Without the blank lines that statements leave behind: one of two, those next to a brace.
std::string without_gaps(const std::string& text) {
  std::string result;
  for (const auto& line : lines_of(text)) {
    if (line.compare(indent_at(line, 0), 1, "}") == 0 && result.ends_with("\n\n"))
      result.pop_back();
    if (line.empty() && (result.ends_with("\n\n") || result.ends_with("{\n"))) continue;
    result += line + "\n";
  }
  return result;
}

}  // namespace

std::string fold(const std::string& function, const std::string& slug) {
  static const std::regex choice(R"(!?\bfault\(\s*" *"\s*\)\s*\?)"),
      branch(R"(\bif \(\s*!?fault\()"), any(R"(\bfault\(\s*")");
  auto text = function;
  Range found{};
  while (find_last(code_only(text), choice, found)) fold_choice(text, found, slug);
  while (find_last(code_only(text), branch, found)) fold_if(text, found.begin, slug);
  if (find_last(code_only(text), any, found))
    throw Error("not to be folded: " +
                in(text, {line_begin(text, found.begin), line_end(text, found.end)}));
  return dedented(without_gaps(text), indent_at(text, 0));
}

}  // namespace lockstep::course
