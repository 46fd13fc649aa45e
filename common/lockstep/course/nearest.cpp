#include <lockstep/course/nearest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

namespace lockstep::course {
namespace {

// Levenshtein's distance: letters to put in, take out or change.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j)
      diagonal = std::exchange(row[j + 1],
                               std::min({row[j] + 1, row[j + 1] + 1, diagonal + (a[i] != b[j])}));
  }
  return row.back();
}

// Pitfalls have hyphens, lessons underscores; whoever misspells a name may take one for the other.
std::string hyphened(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string joined(std::string name) {
  std::erase(name, '-');
  return name;
}

// Words between hyphens.
std::set<std::string> words_of(const std::string& name) {
  std::istringstream in(name);
  std::set<std::string> words;
  for (std::string word; std::getline(in, word, '-');) words.insert(word);
  return words;
}

}  // namespace

std::vector<std::string> nearest(const std::string& wanted, const std::vector<std::string>& names) {
  const auto spelt = hyphened(wanted);
  const auto of_wanted = words_of(spelt);
  std::vector<std::tuple<std::size_t, std::size_t, std::string>>
      ranked;  // words that differ, letters that do
  for (const auto& name : names) {
    const auto its = hyphened(name);
    const auto words = words_of(its);
    const auto other = static_cast<std::size_t>(
        std::count_if(of_wanted.begin(), of_wanted.end(),
                      [&](const auto& word) { return !words.contains(word); }));
    const bool holds = joined(its).find(joined(spelt)) != std::string::npos;
    ranked.emplace_back(holds ? 0 : other, holds ? 0 : distance(spelt, its), name);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> result;
  for (const auto& [words, letters, name] : ranked)
    if (result.size() < 3) result.push_back(name);
  return result;
}

}  // namespace lockstep::course
