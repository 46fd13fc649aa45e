#include <lockstep/course/cpp_text.h>
#include <lockstep/course/python_code.h>

#include <regex>

namespace lockstep::course {

std::optional<PythonCode> python_code_of(const pages::Page& page) {
  static const std::regex block("In Python,\\s\\[[^\\]]*\\]\\(([^)]*)\\)[^\\n]*\\n\\n```diff\\n");
  const auto section = page.section("The code");
  std::smatch found;
  if (!std::regex_search(section, found, block)) return std::nullopt;
  PythonCode python{.file = found[1].str(), .code = {}};
  const auto after = found.suffix().str();
  for (const auto& line : lines_of(after.substr(0, after.find("```")))) {
    const char sign = line.empty() ? ' ' : line.front();
    const auto text = (line.empty() || sign == '.' ? line : line.substr(1)) + "\n";
    if (sign != '+') python.code.broken += text;
    if (sign != '-') python.code.right += text;
  }
  return python;
}

}  // namespace lockstep::course
