#include <lockstep/course/condition.h>
#include <lockstep/course/cpp_text.h>
#include <lockstep/course/fold.h>
#include <lockstep/course/leftovers.h>
#include <lockstep/course/tidy.h>

#include <algorithm>
#include <regex>
#include <set>

namespace lockstep::course {
namespace {

struct Range {
  std::size_t begin, end;
};

const std::string kKnown = {kKnownTrue, kKnownFalse};

void replace(std::string& text, Range range, const std::string& by) {
  text.replace(range.begin, range.end - range.begin, by);
}

std::size_t statement_begin(const std::string& code, std::size_t at) {
  while (at > 0 && std::string_view(";{}").find(code[at - 1]) == kNowhere) --at;
  return next_code(code, at);
}

// Together with the lines' breaks and trailing comments, where nothing else stands on them.
Range whole_lines(const std::string& text, Range range) {
  const auto code = code_only(text);
  const auto begin = line_begin(text, range.begin), end = line_end(text, range.end);
  if (begin + indent_at(text, begin) != range.begin || next_code(code, range.end) < end)
    return range;
  return {begin, end};
}

std::string with_known_faults(const std::string& text, const std::string& slug) {
  static const std::regex asked(R"rx(\bfault\(\s*"([a-z0-9-]+)"\s*\))rx");
  std::string result;
  auto rest = text.begin();
  for (std::sregex_iterator it(text.begin(), text.end(), asked), none; it != none; ++it) {
    result.append(rest, (*it)[0].first);
    result += (*it)[1] == slug ? kKnownTrue : kKnownFalse;
    rest = (*it)[0].second;
  }
  return result.append(rest, text.end());
}

// The expression around `at`: up to a bracket, comma, semicolon or `=`, or to `return`.
Range expression_around(const std::string& code, std::size_t at) {
  std::size_t begin = at, end = at;
  for (; begin > 0; --begin) {
    const char c = code[begin - 1];
    if (c == ')' || c == '}' || c == ']') {
      begin = opening_around(code, begin - 1) + 1;
    } else if (std::string_view("({[,;").find(c) != std::string_view::npos) {
      break;
    } else if (c == '=' && code[begin] != '=' &&
               std::string_view("=!<>").find(code[begin - 2]) == kNowhere) {
      break;
    } else if (begin >= 6 && word_at(code, begin - 6, "return")) {
      break;
    }
  }
  for (; end < code.size() && std::string_view(")}],;").find(code[end]) == kNowhere; ++end)
    if (code[end] == '(' || code[end] == '{' || code[end] == '[') end = closing(code, end);
  begin = next_code(code, begin);
  return {begin, previous_code(code, end) + 1};
}

// Names that the statements of a block declare, and whether one of the objects is there for its destructor.
struct Declarations {
  std::set<std::string> names;
  bool guards = false;
};

Declarations declarations_in(const std::string& code) {
  static const std::regex declaration(
      R"(^(?:(?:const|static|constexpr) )*([A-Za-z_][\w:]*)(?:<[^;=]*>)?(?:\s*[&*]+\s*|\s+)(\w+)\s*[=({;,\[])");
  static const std::set<std::string> no_types = {"return", "throw", "delete", "else",
                                                 "using",  "goto",  "case"};
  Declarations found;
  for (auto at = next_code(code, 0); at < code.size();) {
    const auto end = end_of_statement(code, at);
    const auto statement = code.substr(at, end - at);
    std::smatch match;
    if (std::regex_search(statement, match, declaration) && !no_types.contains(match[1])) {
      found.names.insert(match[2]);
      if (match[1].str().find("Guard") != kNowhere) found.guards = true;
    }
    at = next_code(code, end);
  }
  return found;
}

// Whether a block's statements mean the same without its braces.
bool may_unwrap(const std::string& code, Range statement, const std::string& content) {
  const auto open = opening_around(code, statement.begin);
  const auto before = code.substr(open + 1, statement.begin - open - 1);
  const auto after =
      code.substr(statement.end, closing_around(code, statement.end) - statement.end);
  const auto found = declarations_in(content);
  if (found.guards && next_code(after, 0) < after.size()) return false;
  for (const auto& name : found.names)
    if (count_name(before, name) + count_name(after, name) > 0) return false;
  return true;
}

// Behind a statement that leaves its block nothing of that block is reached.
void drop_dead_code(std::string& text, std::size_t begin) {
  const auto code = code_only(text);
  const auto close = closing_around(code, begin);
  for (auto at = next_code(code, begin); at < close;) {
    const auto end = end_of_statement(code, at);
    if (word_at(code, at, "return") || word_at(code, at, "throw")) {
      const auto rest = line_end(text, end);
      if (rest < close) replace(text, {rest, line_begin(text, close)}, "");
      return;
    }
    at = next_code(code, end);
  }
}

// "T x = a;" and "x = b;" are "T x = b;": what is replaced at once need not be told of.
void merge_with_declaration(std::string& text, std::size_t begin) {
  static const std::regex declaration(R"(^((?:[A-Za-z_][\w:]*)(?:<[^;=]*>)? )(\w+)(?: =[^,]*)?;$)");
  static const std::regex assignment(R"(^(\w+) = )");
  const auto code = code_only(text);
  begin = next_code(code, begin);
  const auto before = previous_code(code, begin);
  if (before == kNowhere || code[before] != ';' || line_end(text, before) > begin) return;
  const auto first = statement_begin(code, before);
  const auto declared = code.substr(first, before + 1 - first);
  const auto assigned = code.substr(begin, end_of_statement(code, begin) - begin);
  std::smatch name, value;
  if (!std::regex_search(declared, name, declaration) ||
      !std::regex_search(assigned, value, assignment) || name[2] != value[1] ||
      count_name(value.suffix(), name[2].str()) > 0)
    return;
  const auto comments = text.substr(line_end(text, before), begin - line_end(text, before));
  replace(text, {first, begin}, comments.substr(indent_at(text, first)) + name[1].str());
}

// A statement that does nothing goes, with the comment directly above it and with an if that holds nothing else.
void remove_statement(std::string& text, Range statement) {
  const auto code = code_only(text);
  const auto before = previous_code(code, statement.begin);
  if (before != kNowhere && before >= 3 && word_at(code, before - 3, "else")) {
    replace(text, {previous_code(code, before - 3) + 1, statement.end}, "");
    return;
  }
  if (before != kNowhere && code[before] == ')') {  // all that a loop does, or another if
    const auto open = opening_around(code, before);
    auto header = previous_code(code, open);
    while (header > 0 && is_word(code[header - 1])) --header;
    remove_statement(text, {header, statement.end});
    return;
  }
  auto lines = whole_lines(text, statement);
  lines.begin = with_comment_above(text, lines.begin);
  replace(text, lines, "");
  const auto left = code_only(text);
  const auto open = opening_around(left, lines.begin), close = closing_around(left, lines.begin);
  if (open == kNowhere || text.find_first_not_of(" \n", open + 1) != close) return;
  const auto condition_end = previous_code(left, open);
  if (condition_end == kNowhere || left[condition_end] != ')') return;
  const auto condition = opening_around(left, condition_end);
  const auto header =
      condition == kNowhere || condition < 3 ? kNowhere : previous_code(left, condition) - 1;
  if (!word_at(left, header, "if") || word_at(left, next_code(left, close + 1), "else")) return;
  remove_statement(text, {header, close + 1});
}

// The statement that an if comes to.
void replace_if(std::string& text, std::size_t begin, bool condition) {
  const auto code = code_only(text);
  const auto then = next_code(code, closing(code, code.find('(', begin)) + 1);
  Range chosen{then, end_of_statement(code, then)};
  const Range whole{begin, end_of_statement(code, begin)};
  if (!condition) {
    if (whole.end == chosen.end) return remove_statement(text, whole);
    chosen = {next_code(code, next_code(code, chosen.end) + 4), whole.end};
  }
  const auto before = previous_code(code, begin);
  const bool in_block =
      before == kNowhere || std::string_view("{};").find(code[before]) != kNowhere;
  auto indent = indent_at(text, chosen.begin);
  if (in_block && code[chosen.begin] == '{') {
    Range content{line_end(text, chosen.begin), line_begin(text, chosen.end - 1)};
    if (may_unwrap(code, whole, code.substr(content.begin, content.end - content.begin))) {
      if (content.begin >= content.end) return remove_statement(text, whole);
      indent = indent_at(text, content.begin);
      content.begin += indent;
      chosen = {content.begin, content.end - 1};
    }
  }
  const auto spaces = indent - std::min(indent, indent_at(text, begin));
  const auto plain = dedented(text.substr(chosen.begin, chosen.end - chosen.begin), spaces);
  replace(text, whole, plain);
  if (!in_block) return;
  drop_dead_code(text, begin);
  merge_with_declaration(text, begin);
}

// A constant of known value: its name gives way to the value in the rest of its block.
void replace_constant(std::string& text, const std::string& name, Range declaration, char value) {
  auto code = code_only(text);
  const auto close = closing_around(code, declaration.end);
  for (auto at = close; (at = code.rfind(name, at - 1)) != kNowhere && at >= declaration.end;) {
    if (name_at(code, at, name)) replace(text, {at, at + name.size()}, std::string(1, value));
  }
  replace(text, whole_lines(text, declaration), "");
}

// Whether it can do without parentheses: a name or a call, or a sum or product that is compared or assigned.
bool needs_no_parentheses(const std::string& code, Range parentheses, const std::string& plain) {
  static const std::regex name(R"(^[\w.:]+)"), sum(R"(^[\w.: +*/-]+$)");
  const auto plain_code = code_only(plain);
  std::smatch found;
  if (!std::regex_search(plain_code, found, name)) return false;
  const auto size = static_cast<std::size_t>(found.length());
  if (size == plain.size() || (plain[size] == '(' && closing(plain_code, size) + 1 == plain.size()))
    return true;
  const auto before = code[previous_code(code, parentheses.begin)];
  return std::regex_match(plain_code, sum) && (before == '<' || before == '=') &&
         code[parentheses.end] == ';';
}

// Makes something of what is known at `at`: afterwards there is one less, or it is written out.
void fold_at(std::string& text, std::size_t at) {
  static const std::regex constant(R"(^const bool (\w+) =\s*$)");
  const auto code = code_only(text);
  auto range = expression_around(code, at);
  const auto plain = simplified(text.substr(range.begin, range.end - range.begin));
  const auto before = previous_code(code, range.begin), owner = previous_code(code, before);
  const bool is_grouped = code[before] == '(' && !is_word(code[owner]) &&
                          std::string_view(")]>").find(code[owner]) == kNowhere;
  if (is_grouped) {
    const Range parentheses{before, closing(code, before) + 1};
    if (is_known(plain) || needs_no_parentheses(code, parentheses, plain))
      return replace(text, parentheses, plain);
  }
  if (!is_known(plain)) return replace(text, range, plain);
  const bool value = plain[0] == kKnownTrue;
  if (code[before] == '(' && owner > 0 && word_at(code, owner - 1, "if"))
    return replace_if(text, owner - 1, value);
  const auto statement = statement_begin(code, range.begin);
  const auto head = code.substr(statement, range.begin - statement);
  if (std::smatch found; std::regex_search(head, found, constant) && code[range.end] == ';')
    return replace_constant(text, found[1], {statement, range.end + 1}, plain[0]);
  if (code[before] == '=') range.begin = before + 1;
  replace(text, range, std::string(code[before] == '=' ? " " : "") + (value ? "true" : "false"));
}

}  // namespace

std::string fold(const std::string& function, const std::string& slug) {
  const auto plain = without_near_misses(without_marks(function));
  auto text = with_known_faults(plain, slug);
  do {
    for (std::size_t at; (at = text.find_first_of(kKnown)) != kNowhere;) fold_at(text, at);
  } while (remove_leftover(text, plain));
  return dedented(without_gaps(rejoined(text, plain)), indent_at(text, 0));
}

}  // namespace lockstep::course
