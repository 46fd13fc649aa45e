#include <lockstep/base/text.h>
#include <lockstep/flight/words.h>

#include <algorithm>

namespace lockstep::flight {
namespace {

constexpr std::size_t kMostParts = 3;  // of a coalesced call
constexpr std::size_t kLongest = 200;  // of sizes

std::string shortened(const std::string& text) {
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

std::string call_text(const Names& names, const Entry& entry) {
  std::string text(operation_of(names, entry));
  const auto& in = names.text(entry.input_sizes);
  const auto& out = names.text(entry.output_sizes);
  if (in != "[]") text += " " + shortened(in);
  if (out != in && out != "[]") text += (in == "[]" ? " " : " -> ") + shortened(out);
  const auto dtypes = entry.input_dtypes != kNoName ? entry.input_dtypes : entry.output_dtypes;
  if (dtypes != kNoName) text += " " + shortened(names.text(dtypes));
  if (entry.input_dtypes != kNoName && entry.output_dtypes != kNoName &&
      entry.input_dtypes != entry.output_dtypes)
    text += " -> " + shortened(names.text(entry.output_dtypes));
  return text;
}

}  // namespace

std::string_view operation_of(const Names& names, const Entry& entry) {
  const std::string_view text = names.text(entry.operation);
  return text.substr(text.find(':') + 1);  // npos + 1 is 0
}

std::string call_text(const Names& names, std::span<const Entry> calls) {
  std::string text;
  for (std::size_t i = 0; i < std::min(calls.size(), kMostParts); ++i)
    text += (i == 0 ? "" : " + ") + call_text(names, calls[i]);
  if (calls.size() > kMostParts)
    text += " + " + std::to_string(calls.size() - kMostParts) + " more in one";
  return text;
}

std::string call_site(const Names& names, std::span<const Entry> calls) {
  if (calls.empty() || calls[0].call_site == kNoName) return "";
  return " (" + names.text(calls[0].call_site) + ")";
}

std::string group_text(const Names& names, const Group& group) {
  const auto& description = names.text(group.description);
  const auto& name = names.text(group.name);
  return description.empty() || description == "undefined" ? name : name + " (" + description + ")";
}

std::uint64_t numel(std::string_view sizes) {
  std::uint64_t total = 0, product = 1, number = 1;  // a tensor without sizes has one element
  int depth = 0;
  bool in_number = false;
  for (const char c : sizes) {
    if (c == '[') {
      ++depth;
      product = number = 1;
    } else if (c >= '0' && c <= '9') {
      number = (in_number ? 10 * number : 0) + static_cast<std::uint64_t>(c - '0');
    } else if (c == ',' && depth == 2) {
      product *= number;
    } else if (c == ']' && depth-- == 2) {
      total += product * number;
    }
    in_number = c >= '0' && c <= '9';
  }
  return total;
}

}  // namespace lockstep::flight
