#include <lockstep/base/text.h>
#include <lockstep/course/cpp_text.h>
#include <lockstep/course/diff.h>
#include <lockstep/course/lessons.h>
#include <lockstep/course/narrow.h>
#include <lockstep/course/prose.h>
#include <lockstep/course/terminal.h>

#include <algorithm>
#include <iostream>
#include <regex>
#include <utility>

namespace lockstep::course {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMargin = 6;  // the sign, and a bar: code may begin with a `+` of its own

// "[Lesson 05](../lesson.md)" gives "Lesson 05 (lessons/05_set_epoch/lesson.md)"; "[`no-sharding`](...)" only the slug;
// "![What it shows](picture.svg)" gives "Picture: What it shows (lessons/...)".
std::string without_links(const std::string& text, const fs::path& folder) {
  static const std::regex link(R"((!?)\[([^\]]*)\]\(([^)]*)\))");
  std::string result;
  auto rest = text.begin();
  for (std::sregex_iterator it(text.begin(), text.end(), link), none; it != none; ++it) {
    const std::string picture = (*it)[1], words = (*it)[2], target = (*it)[3];
    result.append(rest, (*it)[0].first);
    result += (picture.empty() ? "" : "Picture: ") + words;
    if (words.rfind('`', 0) != 0)
      result += " (" +
                (target.find("://") == kNowhere
                     ? fs::relative((folder / target).lexically_normal(), source_folder()).string()
                     : target) +
                ")";
    rest = (*it)[0].second;
  }
  return result.append(rest, text.end());
}

// A paragraph, or an item of a list, which hangs by its mark.
void say_paragraph(const std::string& text) {
  static const std::regex mark(R"(^(- |\d+\. ))");
  std::smatch found;
  const std::string item = std::regex_search(text, found, mark) ? found.str() : "";
  auto lines = wrapped(text.substr(item.size()), std::string(2 + item.size(), ' '));
  std::cout << lines.replace(2, item.size(), item);
}

// Whether what follows the line is another statement.
bool ends_statement(const std::string& line) {
  const auto code = code_only(line);
  const auto last = code.find_last_not_of(' ');
  return last == kNowhere || std::string_view(";{}:").find(code[last]) != kNowhere;
}

// One side of a hunk. A statement of several lines that differs in one of them has the sign on all.
std::vector<DiffLine> marked(const Hunk& hunk, char side) {
  std::vector<DiffLine> lines;
  std::size_t begin = 0;  // of the statement
  bool differs = false;
  for (const auto& line : hunk.lines) {
    if (line.sign != ' ' && line.sign != side) continue;
    lines.push_back(line);
    differs = differs || line.sign == side;
    if (!ends_statement(line.text)) continue;
    for (; differs && begin < lines.size(); ++begin) lines[begin].sign = side;
    begin = lines.size();
    differs = false;
  }
  for (; differs && begin < lines.size(); ++begin) lines[begin].sign = side;
  return lines;
}

}  // namespace

void say_heading(const std::string& text) {
  std::cout << "\n" << coloured(text, Colour::bold) << "\n";
}

void say_section(const std::string& markdown, const fs::path& folder) {
  const auto text = without_links(markdown, folder);
  static const std::regex begins_item(R"(^(- |\d+\. ))");
  std::string paragraph;
  const auto finish = [&] {
    if (!paragraph.empty()) say_paragraph(std::exchange(paragraph, ""));
  };
  for (const auto& line : lines_of(text)) {
    const bool code = indent_at(line, 0) >= 4 && !line.empty();
    if (line.empty() || code || std::regex_search(line, begins_item)) finish();
    if (line.empty() || code)
      std::cout << (code ? line : "") << "\n";
    else
      paragraph += line + "\n";
  }
  finish();
}

void say_lines(const std::vector<DiffLine>& lines, char side) {
  std::size_t indent = kNowhere;
  for (const auto& line : lines)
    if (!line.text.empty() && line.text != "...")
      indent = std::min(indent, indent_at(line.text, 0));
  for (const auto& line : lines) {
    if (line.sign != ' ' && line.sign != side) continue;
    for (const auto& narrow :
         lines_of(narrowed(dedented(line.text + "\n", indent), kColumns - kMargin))) {
      const auto text = std::string("   ") + line.sign + "|" + (narrow.empty() ? "" : " ") + narrow;
      std::cout << (line.sign == ' ' ? text
                                     : coloured(text, side == '-' ? Colour::red : Colour::green))
                << "\n";
    }
  }
}

void say_code(const Code& variants, char side) {
  bool first = true, any = false;
  for (const auto& hunk : hunks_between(variants.broken, variants.right)) {
    if (!std::exchange(first, false)) std::cout << "      ...\n";
    const auto lines = marked(hunk, side);
    any = any || std::any_of(lines.begin(), lines.end(),
                             [&](const auto& line) { return line.sign == side; });
    say_lines(lines, side);
  }
  if (!any)
    std::cout << (side == '-' ? "\n  A part is missing here, which the fix has.\n"
                              : "\n  The marked lines are gone.\n");
}

}  // namespace lockstep::course
