#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/course/cpp_text.h>
#include <lockstep/course/fold.h>
#include <lockstep/course/nearest.h>
#include <lockstep/course/pitfall_source.h>

#include <algorithm>
#include <regex>

namespace lockstep::course {
namespace {

namespace fs = std::filesystem;

bool has_word(const std::string& code, const std::string& word) {
  auto at = code.find(word);
  while (at != kNowhere && !word_at(code, at, word)) at = code.find(word, at + 1);
  return at != kNowhere;
}

bool begins_scope(const std::string& head) {
  for (const auto* word : {"namespace", "struct", "class", "union", "enum"})
    if (has_word(head, word)) return true;
  return false;
}

// The first brace around `at` that is no namespace's and no type's is a function's.
void find_function(const std::string& text, const std::string& code, std::size_t at,
                   Pitfall& pitfall) {
  static const std::regex access(R"(\s*(public|protected|private)\s*:)");
  for (auto open = opening_around(code, at); open != kNowhere; open = opening_around(code, open)) {
    auto head = open;
    while (head > 0 && std::string_view(";{}").find(code[head - 1]) == kNowhere)
      head = code[head - 1] == ')' ? opening_around(code, head - 1) : head - 1;
    auto words = code.substr(head, open - head);
    if (begins_scope(words)) break;
    std::smatch found;
    if (std::regex_search(words, found, access, std::regex_constants::match_continuous))
      head += found.length();
    pitfall.begin = with_comment_above(text, line_begin(text, next_code(code, head)));
    pitfall.end = line_end(text, closing(code, open));
  }
  if (pitfall.end == 0)
    throw Error(pitfall.file.string() + ":" + std::to_string(pitfall.line) + ": fault(\"" +
                pitfall.slug + "\") stands in no function");
}

void find_in(const fs::path& file, const std::string& lesson, std::vector<Pitfall>& pitfalls) {
  static const std::regex asked(R"rx(fault\(\s*"(?!near-miss-)([a-z0-9-]+)")rx");
  const auto text = read_file(file);
  const auto code = code_only(text);
  for (auto at = code.find("fault("); at != kNowhere; at = code.find("fault(", at + 1)) {
    const auto here = text.begin() + static_cast<std::ptrdiff_t>(at);
    std::smatch found;
    if (!word_at(code, at, "fault") ||
        !std::regex_search(here, text.end(), found, asked, std::regex_constants::match_continuous))
      continue;
    Pitfall pitfall{.slug = found[1], .lesson = lesson, .file = file};
    pitfall.line = 1 + static_cast<int>(std::count(text.begin(), here, '\n'));
    find_function(text, code, at, pitfall);
    pitfalls.push_back(pitfall);
  }
}

}  // namespace

std::vector<Pitfall> find_pitfalls(const fs::path& source) {
  std::vector<fs::path> files;
  for (const auto& lesson : fs::directory_iterator(source / "lessons"))
    if (lesson.is_directory())
      for (const auto& file : fs::directory_iterator(lesson))
        if (file.path().extension() == ".cpp" || file.path().extension() == ".h")
          files.push_back(file);
  std::sort(files.begin(), files.end());
  std::vector<Pitfall> pitfalls;
  for (const auto& file : files) find_in(file, file.parent_path().filename(), pitfalls);
  return pitfalls;
}

Pitfall find_pitfall(const std::vector<Pitfall>& pitfalls, const std::string& slug,
                     std::vector<std::string> slugs) {
  for (const auto& pitfall : pitfalls) {
    if (pitfall.slug == slug) return pitfall;
    slugs.push_back(pitfall.slug);
  }
  throw UsageError("there is no pitfall \"" + slug + "\"; the nearest: " +
                   list(nearest(slug, slugs)) + ". ./lockstep explain lists all");
}

Code code_of(const Pitfall& pitfall) {
  const auto function = read_file(pitfall.file).substr(pitfall.begin, pitfall.end - pitfall.begin);
  Code code{.broken = fold(function, pitfall.slug), .right = fold(function, "")};
  if (code.broken == code.right)
    throw Error(pitfall.file.string() + ":" + std::to_string(pitfall.line) + ": with and without " +
                pitfall.slug + " the function is the same");
  return code;
}

}  // namespace lockstep::course
