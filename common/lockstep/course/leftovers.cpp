#include <lockstep/course/condition.h>
#include <lockstep/course/cpp_text.h>
#include <lockstep/course/leftovers.h>
#include <lockstep/course/tidy.h>

#include <algorithm>
#include <regex>
#include <set>

namespace lockstep::course {
namespace {

constexpr std::size_t kSourceColumns = 100;  // as clang-format has them

struct Variable {
  std::string type, name, value;  // value: "" where there is none
  std::size_t begin, end;         // of the declaration
};

// At the beginning of a line, of one name.
std::vector<Variable> variables_in(const std::string& text, const std::string& code) {
  static const std::regex declaration(
      R"(^(?:const )?([A-Za-z_][\w:]*(?:<[^;=(){}]*>)?) (\w+)(?: =\s*|;$))");
  static const std::set<std::string> no_types = {"return", "throw", "else", "using", "delete"};
  std::vector<Variable> found;
  for (std::size_t line = 0; line < code.size(); line = line_end(code, line)) {
    const auto begin = line + indent_at(code, line);
    const auto before = previous_code(code, begin);
    if (before == kNowhere || std::string_view(";{}").find(code[before]) == kNowhere) continue;
    if (opening_around(code, begin) == kNowhere) continue;
    const auto end = end_of_statement(code, begin);
    const auto statement = code.substr(begin, end - begin);
    std::smatch match;
    if (!std::regex_search(statement, match, declaration) || no_types.contains(match[1])) continue;
    const auto value = std::min(begin + static_cast<std::size_t>(match.length()), end - 1);
    found.push_back({match[1], match[2], text.substr(value, end - 1 - value), begin, end});
  }
  return found;
}

bool assigns_at(const std::string& code, std::size_t at, std::size_t size) {
  static const std::regex before(R"((\+\+|--|&)$)"), after(R"(^(\+\+|--| ?[-+*/%&|^]?=[^=]))");
  return std::regex_search(code.substr(at - std::min<std::size_t>(at, 2), 2), before) ||
         std::regex_search(code.substr(at + size, 4), after);
}

// "T name", "T& name", "vector<T> name"; not "return name".
bool declares_at(const std::string& code, std::size_t at) {
  static const std::regex type(R"([\w>][&*]* $)"), keyword(R"(\b(return|throw|case|else) $)");
  const auto before = code.substr(line_begin(code, at), at - line_begin(code, at));
  return std::regex_search(before, type) && !std::regex_search(before, keyword);
}

// Whether it is given another value, or stands for something else somewhere.
bool is_changed(const std::string& code, const std::string& name) {
  for (auto at = code.find(name); at != kNowhere; at = code.find(name, at + 1))
    if (name_at(code, at, name) && (assigns_at(code, at, name.size()) || declares_at(code, at)))
      return true;
  return false;
}

// Whether all that the declaration does is to name a value or a lambda: no guard, no call but some that lessons make.
bool does_nothing(const Variable& variable) {
  static const std::regex plain(
      R"(bool|int|double|at::Tensor|std::(optional|vector|string|u?int64_t|size_t)\b.*)");
  if (variable.value.empty()) return std::regex_match(variable.type, plain);
  static const std::regex call(R"((\w+)\()");
  static const std::set<std::string> harmless = {"rank",   "world_size", "size", "empty", "device",
                                                 "is_cpu", "Device",     "min",  "max",   "ones"};
  const auto code = code_only(variable.value);
  static const std::regex lambda(R"(^\[&?\] ?[({])");
  if (std::regex_search(code, lambda)) return code.ends_with('}');
  for (std::sregex_iterator it(code.begin(), code.end(), call), none; it != none; ++it)
    if (!harmless.contains((*it)[1])) return false;
  static const std::regex changes(R"(\+\+|--|[^=!<>]=[^=]|\[&?\])");
  return !std::regex_search(code, changes);
}

// Somewhere in the function: as a parameter, in a loop, or as a variable.
bool is_declared_as(const std::string& code, const std::string& type, const std::string& name) {
  static const std::regex inside_a_name(R"([\w:]$)");
  const auto declaration = type + " " + name;
  for (auto at = code.find(declaration); at != kNowhere; at = code.find(declaration, at + 1))
    if (name_at(code, at + type.size() + 1, name) &&
        !std::regex_search(code.substr(at - std::min<std::size_t>(at, 1), 1), inside_a_name))
      return true;
  return false;
}

// What may stand wherever the variable does: copies of these are as good as the object, and nothing is computed in
// another type (1 / ranks is no 1.0 / ranks).
bool may_stand_for(const Variable& variable, const std::string& code, const std::string& rest) {
  static const std::set<std::string> types = {
      "bool", "int", "double", "std::int64_t", "std::uint64_t", "std::size_t", "at::Tensor"};
  static const std::regex name(R"([A-Za-z_]\w*)"), whole(R"([\d']+)"), decimal(R"(\d+\.\d*)");
  const auto& value = variable.value;
  if (!types.contains(variable.type) || is_changed(rest, variable.name)) return false;
  if (value == "true" || value == "false") return variable.type == "bool";
  if (std::regex_match(value, name))
    return !is_changed(rest, value) &&
           (variable.type == "at::Tensor" || is_declared_as(code, variable.type, value));
  const bool same_type = (variable.type == "int" && std::regex_match(value, whole)) ||
                         (variable.type == "double" && std::regex_match(value, decimal));
  return same_type && count_name(rest, variable.name) == 1;
}

void remove_lines(std::string& text, const Variable& variable) {
  const auto begin = with_comment_above(text, line_begin(text, variable.begin));
  text.erase(begin, line_end(text, variable.end) - begin);
}

// In all of its scope; the comment beside its declaration goes above the first line that used it.
void replace_by_value(std::string& text, const Variable& variable, std::size_t scope_end) {
  const auto code = code_only(text);
  const auto value = variable.value == "true"    ? std::string(1, kKnownTrue)
                     : variable.value == "false" ? std::string(1, kKnownFalse)
                                                 : variable.value;
  std::size_t first = kNowhere;
  for (auto at = scope_end; (at = code.rfind(variable.name, at - 1)) != kNowhere;) {
    if (at < variable.end) break;
    if (!name_at(code, at, variable.name)) continue;
    text.replace(at, variable.name.size(), value);
    first = at;
  }
  const auto beside = text.substr(variable.end, line_end(text, variable.end) - variable.end);
  if (const auto comment = beside.find("//"); comment != kNowhere)
    text.insert(line_begin(text, first),
                std::string(indent_at(text, first), ' ') + beside.substr(comment));
  text.erase(line_begin(text, variable.begin),
             line_end(text, variable.end) - line_begin(text, variable.begin));
}

}  // namespace

bool remove_leftover(std::string& text, const std::string& original) {
  const auto code = code_only(text), code_before = code_only(original);
  for (const auto& variable : variables_in(text, code)) {
    if (count_name(code, variable.name) >= count_name(code_before, variable.name)) continue;
    const auto scope_end = closing_around(code, variable.end);
    const auto rest = code.substr(variable.end, scope_end - variable.end);
    if (count_name(rest, variable.name) == 0) {
      if (!does_nothing(variable)) continue;
      remove_lines(text, variable);
      return true;
    }
    if (!may_stand_for(variable, code, rest)) continue;
    replace_by_value(text, variable, scope_end);
    return true;
  }
  return false;
}

std::string rejoined(const std::string& text, const std::string& original) {
  const auto before = lines_of(original);
  const std::set<std::string> untouched(before.begin(), before.end());
  std::string result;
  for (const auto& line : lines_of(text)) {
    const auto code = code_only(line);
    const auto word = indent_at(line, 0);
    const auto last = result.size() < 2 ? '\n' : result[result.size() - 2];
    const auto width = result.size() - line_begin(result, result.size() - 1) - 1;
    const auto shortened = line.substr(word);
    if (!untouched.contains(line) && code.ends_with(';') && (last == '=' || last == '(') &&
        width + 1 + shortened.size() <= kSourceColumns) {
      result.back() = ' ';
      if (last == '(') result.pop_back();
      result += shortened + "\n";
    } else {
      result += line + "\n";
    }
  }
  return result;
}

}  // namespace lockstep::course
