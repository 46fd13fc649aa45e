#include <lockstep/course/condition.h>
#include <lockstep/course/cpp_text.h>

#include <vector>

namespace lockstep::course {
namespace {

constexpr std::string_view kTrueText(&kKnownTrue, 1), kFalseText(&kKnownFalse, 1);

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \n");
  return begin == kNowhere ? "" : text.substr(begin, text.find_last_not_of(" \n") + 1 - begin);
}

// Where `mark` stands outside of all brackets, at or behind `from`; kNowhere if it does not.
std::size_t find_outside(const std::string& code, std::string_view mark, std::size_t from) {
  for (std::size_t i = from; i < code.size(); ++i) {
    if (code[i] == '(' || code[i] == '{' || code[i] == '[') i = closing(code, i);
    if (code.compare(i, mark.size(), mark) == 0) return i;
  }
  return kNowhere;
}

// The colon that belongs to the question mark before `from`.
std::size_t find_colon(const std::string& code, std::size_t from) {
  for (int open = 1; from < code.size(); ++from) {
    if (code[from] == '(' || code[from] == '{' || code[from] == '[') from = closing(code, from);
    if (code.compare(from, 2, "::") == 0) {
      ++from;
    } else if (code[from] == '?') {
      ++open;
    } else if (code[from] == ':' && --open == 0) {
      return from;
    }
  }
  return kNowhere;
}

bool is_in_parentheses(const std::string& text) {
  const auto code = code_only(text);
  return code[0] == '(' && closing(code, 0) + 1 == code.size();
}

// Operands of `||` or `&&`, `deciding` being the value that decides the whole.
std::string joined(const std::vector<std::string>& operands, const std::string& op,
                   std::string_view deciding) {
  std::string result;
  std::size_t left = 0;
  for (const auto& operand : operands) {
    const auto part = simplified(operand);
    if (part == deciding) return part;
    if (is_known(part)) continue;
    result += (left++ == 0 ? "" : " " + op + " ") + part;
  }
  if (left == 0) return std::string(deciding == kTrueText ? kFalseText : kTrueText);
  return left == 1 && is_in_parentheses(result) ? result.substr(1, result.size() - 2) : result;
}

}  // namespace

bool is_known(const std::string& expression) {
  return expression == kTrueText || expression == kFalseText;
}

std::string simplified(const std::string& expression) {
  const auto text = trimmed(expression);
  if (text.find_first_of({kKnownTrue, kKnownFalse}) == kNowhere) return text;
  const auto code = code_only(text);
  if (const auto question = find_outside(code, "?", 0); question != kNowhere) {
    const auto colon = find_colon(code, question + 1);
    const auto condition = simplified(text.substr(0, question));
    const auto then = simplified(text.substr(question + 1, colon - question - 1));
    const auto other = simplified(text.substr(colon + 1));
    if (is_known(condition)) return condition == kTrueText ? then : other;
    return condition + " ? " + then + " : " + other;
  }
  for (const auto& [op, deciding] :
       {std::pair{std::string("||"), kTrueText}, {std::string("&&"), kFalseText}}) {
    std::vector<std::string> operands;
    std::size_t begin = 0;
    for (std::size_t end; (end = find_outside(code, op, begin)) != kNowhere; begin = end + 2)
      operands.push_back(text.substr(begin, end - begin));
    if (begin == 0) continue;
    operands.push_back(text.substr(begin));
    return joined(operands, op, deciding);
  }
  if (text[0] == '!') {
    const auto operand = simplified(text.substr(1));
    if (!is_known(operand)) return "!" + operand;
    return std::string(operand == kTrueText ? kFalseText : kTrueText);
  }
  if (is_in_parentheses(text)) {
    const auto inside = simplified(text.substr(1, text.size() - 2));
    return is_known(inside) ? inside : "(" + inside + ")";
  }
  return text;
}

}  // namespace lockstep::course
