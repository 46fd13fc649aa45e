#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>

namespace lockstep::diagnose {

std::string number(double value) {
  char text[32];
  const bool whole = std::abs(value) < 1e9 && value == std::floor(value);
  std::snprintf(text, sizeof text, whole ? "%.0f" : "%.4g", value);
  return text;
}

std::optional<double> number_in(const std::string& text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size() ? std::optional(value)
                                                                   : std::nullopt;
}

bool are_close(double a, double b, double tolerance) {
  return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

std::string tensor_text(const char* kind, std::size_t index,
                        const std::vector<std::string>& names) {
  const std::string text = fmt::format("{} {}", kind, index);
  return index < names.size() ? fmt::format("{} (\"{}\")", text, names[index]) : text;
}

bool is_narrow(const std::string& dtype) {
  return dtype.find("16") != std::string::npos || dtype.find('8') != std::string::npos;
}

std::vector<std::string> parameter_names(const Run& run) {
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<trace::Model>()) return at.event->names;
  return {};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}
std::int64_t elements_of(const trace::Model& model) {
  std::int64_t elements = 0;
  for (const auto& shape : model.shapes) elements += elements_of(shape);
  return elements;
}
std::int64_t elements_of(const trace::Collective& call) {
  return std::accumulate(call.sizes.begin(), call.sizes.end(), std::int64_t{0});
}

std::int64_t global_size(const Run& run, const std::string& phase) {
  std::int64_t size = 0;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<trace::Dataset>())
      if (at.event->phase == phase) {
        size = std::max(size, at.event->global_size);
        break;  // others are drawn from beside it
      }
  return size;
}

}  // namespace lockstep::diagnose
