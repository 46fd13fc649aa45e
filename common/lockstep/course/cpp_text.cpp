#include <lockstep/base/error.h>
#include <lockstep/course/cpp_text.h>

#include <algorithm>
#include <cctype>

namespace lockstep::course {
namespace {

bool opens(char c) {
  return c == '(' || c == '{' || c == '[';
}
bool closes(char c) {
  return c == ')' || c == '}' || c == ']';
}

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}

// Behind the literal that begins at `at`.
std::size_t end_of_literal(std::string_view text, std::size_t at) {
  const char quote = text[at];
  for (++at; at < text.size() && text[at] != quote && text[at] != '\n'; ++at)
    if (text[at] == '\\') ++at;
  return std::min(at + 1, text.size());
}

void blank(std::string& code, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i)
    if (code[i] != '\n') code[i] = ' ';
}

}  // namespace

std::string code_only(std::string_view text) {
  std::string code(text);
  bool at_line_begin = true;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    if (text.substr(i, 2) == "//" || (text[i] == '#' && at_line_begin)) {
      end = std::min(text.find('\n', i), text.size());
      blank(code, i, end);
    } else if (text.substr(i, 2) == "/*") {
      end = std::min(text.find("*/", i), text.size() - 2) + 2;
      blank(code, i, end);
    } else if (text[i] == '"' ||
               (text[i] == '\'' && (i == 0 || !is_word(text[i - 1])))) {  // not in 1'000
      end = end_of_literal(text, i);
      blank(code, i + 1, end - 1);
    }
    at_line_begin = text[i] == '\n' || (at_line_begin && text[i] == ' ');
    i = end;
  }
  return code;
}

bool word_at(const std::string& code, std::size_t at, std::string_view word) {
  return at != kNowhere && code.compare(at, word.size(), word) == 0 &&
         (at == 0 || !is_word(code[at - 1])) &&
         (at + word.size() >= code.size() || !is_word(code[at + word.size()]));
}

std::size_t next_code(const std::string& code, std::size_t at) {
  return std::min(code.find_first_not_of(" \n", at), code.size());
}

std::size_t previous_code(const std::string& code, std::size_t at) {
  return at == 0 ? kNowhere : code.find_last_not_of(" \n", at - 1);
}

std::size_t closing(const std::string& code, std::size_t open) {
  int depth = 0;
  for (auto at = open; at < code.size(); ++at) {
    if (opens(code[at])) ++depth;
    if (closes(code[at]) && --depth == 0) return at;
  }
  throw Error("a bracket is not closed: " + code.substr(open, 60));
}

std::size_t opening_around(const std::string& code, std::size_t at) {
  int depth = 0;
  while (at-- > 0) {
    if (closes(code[at])) ++depth;
    if (opens(code[at]) && depth-- == 0) return at;
  }
  return kNowhere;
}

std::size_t end_of_statement(const std::string& code, std::size_t begin) {
  begin = next_code(code, begin);
  if (begin < code.size() && code[begin] == '{') return closing(code, begin) + 1;
  for (const char* header : {"if", "for", "while"}) {
    if (!word_at(code, begin, header)) continue;
    auto end = end_of_statement(code, closing(code, code.find('(', begin)) + 1);
    const auto other = next_code(code, end);
    if (word_at(code, begin, "if") && word_at(code, other, "else"))
      end = end_of_statement(code, other + 4);
    return end;
  }
  if (word_at(code, begin, "try")) {
    auto end = end_of_statement(code, begin + 3);
    while (word_at(code, next_code(code, end), "catch"))
      end = end_of_statement(code, closing(code, code.find('(', end)) + 1);
    return end;
  }
  for (; begin < code.size() && code[begin] != ';'; ++begin)
    if (opens(code[begin])) begin = closing(code, begin);
  return std::min(begin + 1, code.size());
}

std::size_t line_begin(std::string_view text, std::size_t at) {
  const auto before = at == 0 ? kNowhere : text.rfind('\n', at - 1);
  return before == kNowhere ? 0 : before + 1;
}

std::size_t line_end(std::string_view text, std::size_t at) {
  const auto end = text.find('\n', at);
  return end == kNowhere ? text.size() : end + 1;
}

std::size_t indent_at(std::string_view text, std::size_t at) {
  const auto begin = line_begin(text, at);
  return std::min(text.find_first_not_of(' ', begin), text.size()) - begin;
}

std::size_t with_comment_above(std::string_view text, std::size_t begin) {
  while (begin > 0) {
    const auto above = line_begin(text, begin - 1);
    if (text.compare(above + indent_at(text, above), 2, "//") != 0) break;
    begin = above;
  }
  return begin;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size(); at = line_end(text, at)) {
    lines.emplace_back(text.substr(at, line_end(text, at) - at));
    if (lines.back().back() == '\n') lines.back().pop_back();
  }
  return lines;
}

std::string dedented(std::string_view text, std::size_t spaces) {
  std::string result;
  for (std::size_t at = 0; at < text.size(); at = line_end(text, at)) {
    const auto line = text.substr(at, line_end(text, at) - at);
    const auto indent = std::min(line.find_first_not_of(' '), line.size());
    result += line.substr(std::min(indent, spaces));
  }
  return result;
}

}  // namespace lockstep::course
