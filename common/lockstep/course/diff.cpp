#include <lockstep/course/cpp_text.h>
#include <lockstep/course/diff.h>

#include <algorithm>

namespace lockstep::course {
namespace {

// By the longest common subsequence; of equal ones the one that keeps early lines.
std::vector<DiffLine> all_lines(const std::vector<std::string>& before,
                                const std::vector<std::string>& after) {
  // common[i][j]: how many lines before[i:] and after[j:] have in common, in order.
  std::vector<std::vector<std::size_t>> common(before.size() + 1,
                                               std::vector<std::size_t>(after.size() + 1));
  for (auto i = before.size(); i-- > 0;)
    for (auto j = after.size(); j-- > 0;)
      common[i][j] = before[i] == after[j] ? common[i + 1][j + 1] + 1
                                           : std::max(common[i + 1][j], common[i][j + 1]);
  std::vector<DiffLine> lines;
  std::size_t i = 0, j = 0;
  while (i < before.size() || j < after.size()) {
    if (i < before.size() && j < after.size() && before[i] == after[j]) {
      lines.push_back({' ', before[i++]}), ++j;
    } else if (j == after.size() || (i < before.size() && common[i + 1][j] >= common[i][j + 1])) {
      lines.push_back({'-', before[i++]});
    } else {
      lines.push_back({'+', after[j++]});
    }
  }
  return lines;
}

}  // namespace

std::vector<Hunk> hunks_between(const std::string& before, const std::string& after,
                                std::size_t context) {
  const auto lines = all_lines(lines_of(before), lines_of(after));
  std::vector<Hunk> hunks;
  std::size_t line_before = 1, line_after = 1;
  bool inside = false;
  for (std::size_t at = 0; at < lines.size(); ++at) {
    const auto first = lines.begin() + static_cast<std::ptrdiff_t>(at - std::min(at, context));
    const auto last =
        lines.begin() + static_cast<std::ptrdiff_t>(std::min(at + context + 1, lines.size()));
    const bool was_inside = inside;
    inside = std::any_of(first, last, [](const auto& line) { return line.sign != ' '; });
    if (inside && !was_inside) hunks.push_back({line_before, line_after, {}});
    if (inside) hunks.back().lines.push_back(lines[at]);
    line_before += lines[at].sign != '+';
    line_after += lines[at].sign != '-';
  }
  return hunks;
}

std::string head_of(const Hunk& hunk) {
  const auto count = [&](char other) {
    return std::count_if(hunk.lines.begin(), hunk.lines.end(),
                         [&](const auto& line) { return line.sign != other; });
  };
  return "@@ -" + std::to_string(hunk.before) + "," + std::to_string(count('+')) + " +" +
         std::to_string(hunk.after) + "," + std::to_string(count('-')) + " @@";
}

}  // namespace lockstep::course
