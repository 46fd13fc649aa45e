// docs/symptoms.md: what people see, what to check first, and which pitfalls it may be.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::report {

struct Symptom {
  std::string title;  // "It hangs at the end of an epoch"
  std::string also;   // what others call it, for the search
  std::string text;   // what to check, and what decides: Markdown
};

// Throws Error where the page is missing or has no symptom.
std::vector<Symptom> all_symptoms(const std::filesystem::path& source);

// Those that have any of the words, the best first. A word in the title counts most, then one in `also`, then one in the
// text; the fewer symptoms have a word, the more it counts. "hangs" is found by "hang" and by "hanging".
std::vector<Symptom> matching(const std::vector<Symptom>& symptoms, const std::string& words);

}  // namespace lockstep::report
