#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/report/page.h>

#include <cctype>
#include <sstream>

namespace lockstep::report {
namespace {

std::map<std::string, std::string> facts_in(const std::string& front) {
  std::map<std::string, std::string> facts;
  std::istringstream lines(front);
  for (std::string line; std::getline(lines, line);)
    if (const auto colon = line.find(": "); colon != std::string::npos)
      facts[line.substr(0, colon)] = line.substr(colon + 2);
  return facts;
}

}  // namespace

std::string section_of(const std::string& page, const std::string& name) {
  std::istringstream lines(page);
  std::string text, line;
  bool inside = false;
  while (std::getline(lines, line)) {
    if (line.rfind("## ", 0) == 0 || line.rfind("# ", 0) == 0) {
      inside = line == "## " + name;
    } else if (inside && !(text.empty() && line.empty())) {
      text += line + "\n";
    }
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string generic_finding(const std::filesystem::path& source, const std::string& slug) {
  std::istringstream lines(read_file(source / "docs" / "findings.md"));
  const std::string begin = "- `" + slug + "`: ";
  std::string text, line;
  while (std::getline(lines, line)) {
    if (line.rfind(begin, 0) == 0) {
      text = line.substr(begin.size());
    } else if (!text.empty()) {
      if (line.rfind("  ", 0) != 0) break;
      text += line.substr(1);
    }
  }
  return text;
}

std::filesystem::path page_file(const std::filesystem::path& source, const std::string& lesson,
                                const std::string& slug) {
  return source / "lessons" / lesson / "pitfalls" / (slug + ".md");
}

Page read_page(const std::filesystem::path& source, const std::string& lesson,
               const std::string& slug) {
  const auto file = page_file(source, lesson, slug);
  if (!std::filesystem::exists(file))
    throw Error(slug + " has no page: " + file.string() + " is missing");
  const std::string fence = "---\n", begin = "# " + slug + ": ";
  auto text = read_file(file);
  std::string front;
  if (const auto end = text.find("\n" + fence); text.rfind(fence, 0) == 0 && end != text.npos) {
    front = text.substr(fence.size(), end + 1 - fence.size());
    text.erase(0, end + 1 + fence.size());
  }
  if (text.rfind(begin, 0) != 0) throw Error(file.string() + ": expected \"" + begin + "...\"");
  return {.title = text.substr(begin.size(), text.find('\n') - begin.size()),
          .text = text,
          .facts = facts_in(front)};
}

std::map<std::string, Page> all_pages(const std::filesystem::path& source) {
  std::map<std::string, Page> pages;
  for (const auto& lesson : std::filesystem::directory_iterator(source / "lessons")) {
    const auto folder = lesson.path() / "pitfalls";
    if (!std::filesystem::is_directory(folder)) continue;
    for (const auto& page : std::filesystem::directory_iterator(folder)) {
      const auto slug = page.path().stem();
      pages[slug] = read_page(source, lesson.path().filename(), slug);
    }
  }
  return pages;
}

std::vector<std::string> hints_of(const Page& page) {
  std::istringstream lines(page.section("Hints"));
  std::vector<std::string> hints;
  std::string line;
  while (std::getline(lines, line)) {
    const bool begins =
        line.size() > 2 && std::isdigit(static_cast<unsigned char>(line[0])) != 0 && line[1] == '.';
    if (begins)
      hints.push_back(line.substr(3));
    else if (!hints.empty())
      hints.back() += " " + line.substr(std::min(line.find_first_not_of(' '), line.size()));
  }
  return hints;
}

}  // namespace lockstep::report
