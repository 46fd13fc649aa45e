// What the detectors share: figures of a run, and the words of a finding.
#pragma once

#include <lockstep/base/text.h>
#include <lockstep/diagnose/finding.h>
#include <lockstep/diagnose/run.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::diagnose {

std::string number(double value);  // four significant digits; whole numbers below 10^9 whole
// Nothing where the text is more or other than a number.
std::optional<double> number_in(const std::string& text);
// Within `tolerance`, relative to the larger one. The default allows for rounding alone.
bool are_close(double a, double b, double tolerance = 1e-6);
// `parameter 2 ("fc1.bias")`, or without the name where none was recorded.
std::string tensor_text(const char* kind, std::size_t index, const std::vector<std::string>& names);
// Of 16 or 8 bits.
bool is_narrow(const std::string& dtype);
// Of the parameters, as the first rank that recorded its model built it; empty where none did.
std::vector<std::string> parameter_names(const Run& run);

// The ranks outside the largest group of equal values; all of them where no group is a strict
// majority (of two ranks that differ, neither is the guilty one). Nothing when all are equal.
template <class Key>
std::vector<int> odd_ones_out(const std::vector<int>& ranks, const std::vector<Key>& values) {
  std::map<Key, std::size_t> groups;
  for (const auto& value : values) ++groups[value];
  if (groups.size() < 2) return {};
  const Key* majority = nullptr;
  for (const auto& [value, count] : groups)
    if (2 * count > values.size()) majority = &value;
  std::vector<int> odd;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (majority == nullptr || values[i] != *majority) odd.push_back(ranks[i]);
  return odd;
}

// Tells `see` the key and value of each setting of these that is `of` something.
template <class See>
void each_setting(const trace::EventsOf<trace::Settings>& told, trace::SettingsOf of, See see) {
  for (const auto& at : told)
    for (std::size_t i = 0; i < std::min(at.event->keys.size(), at.event->values.size()); ++i)
      if (at.event->of == of) see(at.event->keys[i], at.event->values[i]);
}

std::string shape_text(const std::vector<std::int64_t>& shape);  // "[2, 3]"
std::int64_t elements_of(const std::vector<std::int64_t>& shape);
std::int64_t elements_of(const trace::Model& model);      // its parameters
std::int64_t elements_of(const trace::Collective& call);  // over all its tensors

// Samples of the whole data set of a phase; 0 where no rank recorded one.
std::int64_t global_size(const Run& run, const std::string& phase);

}  // namespace lockstep::diagnose
