// How both runs were set up.
#include <lockstep/compare/looks.h>
#include <lockstep/diagnose/evidence.h>

#include <map>
#include <set>

namespace lockstep::compare {
namespace {

using trace::SettingsOf;

// Of one rank, by key; where one had several values, all of them, each once: "A, then B".
class Told {
 public:
  void add(const std::string& key, const std::string& value) {
    if (!known_.insert({key, value}).second) return;
    const auto [setting, is_first] = by_key.try_emplace(key, value);
    if (!is_first) setting->second += ", then " + value;
  }
  std::map<std::string, std::string> by_key;

 private:
  std::set<std::pair<std::string, std::string>> known_;
};

Told settings_of(const trace::ParticipantTrace& rank, SettingsOf of) {
  Told told;
  diagnose::each_setting(
      rank.all<trace::Settings>(), of,
      [&](const std::string& key, const std::string& value) { told.add(key, value); });
  return told;
}

Told modes_of(const trace::ParticipantTrace& rank) {
  Told told;
  for (const auto& at : rank.all<trace::LayerModes>())
    for (const auto& layer : at.event->layers)
      told.add("buffer " + std::to_string(layer.buffer) + ", parameter " +
                   std::to_string(layer.parameter),
               layer.training ? "train" : "eval");
  return told;
}

// Tells of each setting that both have, with other values.
template <class F>
void for_each_other(const Told& a, const Told& b, F tell) {
  for (const auto& [key, value] : a.by_key)
    if (const auto other = b.by_key.find(key); other != b.by_key.end() && other->second != value)
      tell(key, value, other->second);
}

const trace::Model* model_of(const diagnose::Run& run, std::size_t rank) {
  const auto all = run.ranks[rank]->all<trace::Model>();
  return all.empty() ? nullptr : all.front().event;
}

// Calls `look`(rank, a, b) where both have one.
template <class F>
void for_each_model(const Pair& pair, F look) {
  for (std::size_t r = 0; r < pair.ranks(); ++r) {
    const auto *a = model_of(pair.a, r), *b = model_of(pair.b, r);
    if (a && b) look(pair.rank(r), *a, *b);
  }
}

std::string parameter_text(const trace::Model& model, std::size_t i) {
  if (i >= model.shapes.size()) return "none";
  return diagnose::shape_text(model.shapes[i]) +
         (i < model.dtypes.size() ? " " + model.dtypes[i] : "");
}

bool shapes_fit(const trace::Model& a, const trace::Model& b) {
  const auto places = places_in_b(a.names, b.names);
  if (a.shapes.size() != b.shapes.size()) return false;
  for (std::size_t i = 0; i < a.shapes.size(); ++i)
    if (a.shapes[i] != b.shapes[place_of(places, i)]) return false;
  return true;
}

// What a class is called in both languages: "torch::optim::SGD" and "torch.optim.sgd.SGD" are SGD.
std::string last_name(const std::string& text) {
  return text.substr(text.find_last_of(":.") + 1);
}

bool same_option(const std::string& key, const std::string& a, const std::string& b) {
  const auto x = diagnose::number_in(a), y = diagnose::number_in(b);
  if (x && y) return *x == *y;
  return key.ends_with("optimizer") ? last_name(a) == last_name(b) : a == b;
}

}  // namespace

bool models_fit(const Pair& pair) {
  bool fit = true;
  for_each_model(pair, [&](int, const auto& a, const auto& b) { fit = fit && shapes_fit(a, b); });
  return fit;
}

std::optional<std::string> compare_names(const Pair& pair) {
  const auto a = diagnose::parameter_names(pair.a), b = diagnose::parameter_names(pair.b);
  if (a == b || a.size() != b.size()) return std::nullopt;
  const auto places = places_in_b(a, b);
  if (!std::is_sorted(places.begin(), places.end()))
    return "the parameters are in another order, and are compared by their names";
  std::vector<std::string> others;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i] && !a[i].starts_with("parameter_") && !b[i].starts_with("parameter_"))
      others.push_back(a[i] + " in A is " + b[i] + " in B");
  if (others.empty()) return std::nullopt;
  const auto more = others.size() - 1;
  return "names of parameters differ, and a checkpoint of one may not fit the other: " +
         others.front() + (more > 0 ? ", and " + std::to_string(more) + " more" : "");
}

void compare_setup(const Pair& pair, Seen& seen) {
  for_each_model(pair, [&](int rank, const auto& a, const auto& b) {
    const auto places = places_in_b(a.names, b.names);
    for (std::size_t i = 0; i < std::max(a.shapes.size(), b.shapes.size()); ++i)
      seen.texts({kBefore, rank}, "parameter " + name_at(i < a.names.size() ? a.names : b.names, i),
                 parameter_text(a, i), parameter_text(b, place_of(places, i)));
  });
  for_each_in_both<trace::Settings>(pair, [&](At at, const auto& a, const auto& b) {
    if (a.of != SettingsOf::optimizer || b.of != SettingsOf::optimizer) return;
    std::map<std::string, std::string> of_b;
    for (std::size_t i = 0; i < b.keys.size(); ++i) of_b[b.keys[i]] = b.values[i];
    for (std::size_t i = 0; i < a.keys.size(); ++i)
      if (const auto other = of_b.find(a.keys[i]); other != of_b.end())
        seen.texts(at, "option " + a.keys[i], a.values[i], other->second,
                   !same_option(a.keys[i], a.values[i], other->second));
  });
}

void for_each_other_setting(const Pair& pair, const Tell& tell) {
  for (std::size_t r = 0; r < pair.ranks(); ++r) {
    const auto &a = *pair.a.ranks[r], &b = *pair.b.ranks[r];
    const auto look = [&](const std::string& of, const Told& in_a, const Told& in_b) {
      for_each_other(in_a, in_b, [&](const auto& key, const auto& of_a, const auto& of_b) {
        tell(pair.rank(r), of + ": " + key, of_a, of_b);
      });
    };
    const auto look_at = [&](SettingsOf of) {
      look(to_string(of), settings_of(a, of), settings_of(b, of));
    };
    look_at(SettingsOf::model);
    look("statistics", modes_of(a), modes_of(b));
    // What depends on the number of ranks is no difference where that is one.
    if (!pair.same_ranks) continue;
    look_at(SettingsOf::engine);
    look_at(SettingsOf::loader);
  }
}

std::vector<std::string> compare_surroundings(const Pair& pair) {
  std::vector<std::string> notes;
  if (pair.ranks() == 0) return notes;
  for_each_other(settings_of(*pair.a.ranks[0], SettingsOf::program),
                 settings_of(*pair.b.ranks[0], SettingsOf::program),
                 [&](const auto& key, const auto& a, const auto& b) {
                   notes.push_back(key + ": " + in_both_text(a, b));
                 });
  const auto threads = [](const diagnose::Run& run) {
    const auto all = run.ranks[0]->all<trace::Placement>();
    return all.empty() ? std::int64_t{0} : all.back().event->threads;
  };
  const auto a = threads(pair.a), b = threads(pair.b);
  if (a > 0 && b > 0 && a != b)
    notes.push_back("threads of rank 0: " + in_both_text(std::to_string(a), std::to_string(b)));
  return notes;
}

}  // namespace lockstep::compare
