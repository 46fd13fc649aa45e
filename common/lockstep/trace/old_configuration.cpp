#include <lockstep/trace/old_configuration.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <utility>

namespace lockstep::trace {
namespace {

template <class T>
T number_in(const std::string& text, int base = 10) {
  T value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

// Of "[8, 4]".
std::vector<std::int64_t> shape_in(const std::string& text) {
  std::vector<std::int64_t> shape;
  for (std::size_t i = 1; i < text.size(); ++i)
    if ((text[i - 1] == '[' || text[i - 1] == ' ') && text[i] != ']')
      shape.push_back(number_in<std::int64_t>(text.substr(i)));
  return shape;
}

// Tells `see` each key with its value.
template <class See>
void each_of(const Configuration& old, See see) {
  for (std::size_t i = 0; i < std::min(old.keys.size(), old.values.size()); ++i)
    see(old.keys[i], old.values[i]);
}

SharedPayload layer_modes(const Configuration& old) {
  LayerModes modes;
  each_of(old, [&](const std::string& places, const std::string& mode) {
    std::size_t buffer = 0, parameter = 0;
    if (std::sscanf(places.c_str(), "buffer %zu, parameter %zu", &buffer, &parameter) == 2)
      modes.layers.push_back({static_cast<std::int64_t>(buffer),
                              static_cast<std::int64_t>(parameter), mode == "train"});
  });
  return modes;
}

SharedPayload random_state(const Configuration& old) {
  RandomState state;
  each_of(old, [&](const std::string& generator, const std::string& hash) {
    state.generators.push_back(generator);
    state.hashes.push_back(number_in<std::uint64_t>(hash, 16));
  });
  return state;
}

SharedPayload evaluation_input(const Configuration& old) {
  EvaluationInput given;
  each_of(old, [&](const std::string& key, const std::string& value) {
    if (key == "samples") given.samples = number_in<std::int64_t>(value);
    if (key == "content") given.content = number_in<std::uint64_t>(value, 16);
  });
  return given;
}

SharedPayload workers(const Configuration& old) {
  Workers begin;
  each_of(old, [&](const std::string&, const std::string& seed) {
    begin.base_seed = number_in<std::int64_t>(seed, 16);
  });
  return begin;
}

SharedPayload schedule_twins(const Configuration& old) {
  ScheduleTwins twins;
  each_of(old, [&](const std::string& schedule, const std::string& count) {
    twins = {schedule, number_in<std::int64_t>(count)};
  });
  return twins;
}

SharedPayload untrained(const Configuration& old) {
  Untrained all;
  each_of(old, [&](const std::string& shape, const std::string& step) {
    all.leaves.push_back({shape_in(shape), number_in<std::int64_t>(step)});
  });
  return all;
}

SharedPayload own_tensors_loaded(const Configuration& old) {
  return OwnTensorsLoaded{old.keys.empty() ? std::string() : old.keys.front()};
}

SharedPayload another_model(const Configuration&) {
  return AnotherModel{};
}

SharedPayload moving(const Configuration& old) {
  Moving all;
  each_of(old, [&](const std::string& name, const std::string& text) {
    if (const auto space = text.find(' '); space != std::string::npos)  // "FIRST NOW"
      all.values.push_back({name, text.substr(0, space), text.substr(space + 1)});
  });
  return all;
}

SharedPayload checkpoint_without_gradient(const Configuration&) {
  return CheckpointWithoutGradient{};
}

}  // namespace

SharedPayload typed(SharedPayload payload) {
  static const std::map<std::string, SharedPayload (*)(const Configuration&)> by_name = {
      {"statistics", layer_modes},
      {"randomness", random_state},
      {"evaluation", evaluation_input},
      {"workers", workers},
      {"schedules", schedule_twins},
      {"untrained", untrained},
      {"loaded", own_tensors_loaded},
      {"another model", another_model},
      {"moving", moving},
      {"checkpoint", checkpoint_without_gradient}};
  const auto* old = payload.as<Configuration>();
  if (old == nullptr) return payload;
  if (SettingsOf of{}; from_string(old->of, of)) return Settings{of, old->keys, old->values};
  const auto found = by_name.find(old->of);
  return found == by_name.end() ? payload : found->second(*old);
}

}  // namespace lockstep::trace
