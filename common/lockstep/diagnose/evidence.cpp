#include <lockstep/diagnose/evidence.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>

namespace lockstep::diagnose {

Verdict clean() {
  return {.state = State::clean, .findings = {}, .reason = {}};
}
Verdict not_triggered(std::string reason) {
  return {.state = State::not_triggered, .findings = {}, .reason = std::move(reason)};
}
Verdict not_applicable(std::string reason) {
  return {.state = State::not_applicable, .findings = {}, .reason = std::move(reason)};
}
Verdict found(Finding finding) {
  return {.state = State::found, .findings = {std::move(finding)}, .reason = {}};
}

std::string number(double value) {
  char text[32];
  const bool whole = std::abs(value) < 1e9 && value == std::floor(value);
  std::snprintf(text, sizeof text, whole ? "%.0f" : "%.4g", value);
  return text;
}

std::string tensor_text(const char* kind, std::size_t index,
                        const std::vector<std::string>& names) {
  const std::string text = std::string(kind) + " " + std::to_string(index);
  return index < names.size() ? text + " (\"" + names[index] + "\")" : text;
}

std::string ranks_text(const std::vector<int>& ranks, const char* one, const char* several) {
  return lockstep::ranks_text(ranks) + " " + (ranks.size() == 1 ? one : several);
}

Run::Run(const trace::Trace& trace) : world_size(trace.world_size) {
  for (const auto& rank : trace.ranks) ranks.push_back(&rank);
  std::sort(ranks.begin(), ranks.end(),
            [](const auto* a, const auto* b) { return a->participant.rank < b->participant.rank; });
  for (const auto* rank : ranks) {
    numbers.push_back(rank->participant.rank);
    devices = devices || rank->participant.kind == "device";
  }
  complete = world_size > 0 && ranks.size() == static_cast<std::size_t>(world_size);
}

const trace::ParticipantTrace& Run::rank(int number) const {
  const auto at = std::lower_bound(numbers.begin(), numbers.end(), number);
  const bool left_one = at != numbers.end() && *at == number;
  return *ranks.at(left_one ? static_cast<std::size_t>(at - numbers.begin()) : ranks.size());
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
      if (at.event->phase == phase) size = std::max(size, at.event->global_size);
  return size;
}

}  // namespace lockstep::diagnose
