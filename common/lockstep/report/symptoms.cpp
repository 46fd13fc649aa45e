#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/report/symptoms.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <sstream>

namespace lockstep::report {
namespace {

const std::string kAlso = "Also said as: ";

std::set<std::string> keywords_of(const std::string& text) {
  static const std::set<std::string> kStopWords = {
      "a",  "after", "an",  "and", "are", "at",  "be",   "but",  "do",  "for", "from",
      "i",  "in",    "is",  "it",  "its", "me",  "my",   "no",   "not", "of",  "on",
      "or", "so",    "the", "to",  "too", "was", "what", "when", "why", "with"};
  std::set<std::string> words;
  std::string word;
  for (const char c : text + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!word.empty()) {
      if (kStopWords.count(word) == 0) words.insert(word);
      word.clear();
    }
  }
  return words;
}

// "hang" of "hangs", "hanging" and "hanged".
std::string stem_of(const std::string& word) {
  constexpr std::size_t kShortest = 3;
  for (const std::string ending : {"ing", "ed", "es", "s"})
    if (word.size() >= kShortest + ending.size() && word.ends_with(ending))
      return word.substr(0, word.size() - ending.size());
  return word;
}

// Of equal stems, or one is the beginning of the other and long enough to mean the same.
bool are_alike(const std::string& one, const std::string& other) {
  constexpr std::size_t kLongEnough = 4;
  const auto a = stem_of(one), b = stem_of(other);
  const auto shared = std::min(a.size(), b.size());
  return a == b || (shared >= kLongEnough && a.compare(0, shared, b, 0, shared) == 0);
}

bool has_word(const std::set<std::string>& words, const std::string& word) {
  return std::any_of(words.begin(), words.end(),
                     [&](const auto& each) { return are_alike(each, word); });
}

double weight_of(const Symptom& symptom, const std::string& word) {
  if (has_word(keywords_of(symptom.title), word)) return 3;
  if (has_word(keywords_of(symptom.also), word)) return 2;
  return has_word(keywords_of(symptom.text), word) ? 1 : 0;
}

}  // namespace

std::vector<Symptom> all_symptoms(const std::filesystem::path& source) {
  const auto file = source / "docs" / "symptoms.md";
  std::vector<Symptom> symptoms;
  std::istringstream lines(read_file(file));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("## ", 0) == 0)
      symptoms.push_back({.title = line.substr(3), .also = "", .text = ""});
    else if (!symptoms.empty() && line.rfind(kAlso, 0) == 0)
      symptoms.back().also = line.substr(kAlso.size());
    else if (!symptoms.empty() && !(line.empty() && symptoms.back().text.empty()))
      symptoms.back().text += line + "\n";
  }
  if (symptoms.empty()) throw Error(file.string() + " has no symptom: no line begins with \"## \"");
  return symptoms;
}

std::vector<Symptom> matching(const std::vector<Symptom>& symptoms, const std::string& words) {
  std::vector<double> scores(symptoms.size());
  for (const auto& word : keywords_of(words)) {
    std::vector<double> weights;
    for (const auto& symptom : symptoms) weights.push_back(weight_of(symptom, word));
    const auto having = weights.size() - std::count(weights.begin(), weights.end(), 0);
    if (having == 0) continue;
    const double rarity =
        std::log(1 + static_cast<double>(symptoms.size()) / static_cast<double>(having));
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] += weights[i] * rarity;
  }
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < scores.size(); ++i)
    if (scores[i] > 0) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return scores[a] > scores[b]; });
  std::vector<Symptom> found;
  for (const auto i : order) found.push_back(symptoms[i]);
  return found;
}

}  // namespace lockstep::report
