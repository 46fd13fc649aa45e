#include <lockstep/course/cpp_text.h>
#include <lockstep/course/python_code.h>

#include <regex>

namespace lockstep::course {

std::optional<PythonCode> python_code_of(const report::Page& page) {
  static const std::regex block("In Python,\\s\\[[^\\]]*\\]\\(([^)]*)\\)[^\\n]*\\n\\n```diff\\n");
  const auto section = page.section("The code");
  std::smatch found;
  if (!std::regex_search(section, found, block)) return std::nullopt;
  PythonCode python{.file = found[1].str(), .lines = {}};
  const auto after = found.suffix().str();
  for (const auto& line : lines_of(after.substr(0, after.find("```")))) {
    const bool has_sign = line.find_first_of(" +-") == 0;
    python.lines.push_back({has_sign ? line.front() : ' ', has_sign ? line.substr(1) : line});
  }
  return python;
}

}  // namespace lockstep::course
