// How both runs were set up.
#include <lockstep/base/text.h>
#include <lockstep/compare/aspects.h>
#include <lockstep/diagnose/evidence.h>

#include <map>
#include <set>

namespace lockstep::compare {
namespace {

using Settings = std::map<std::string, std::string>;

// Of one rank; where a key had several values, all of them, each once: "A, then B".
Settings settings_of(const trace::ParticipantTrace& rank, const std::string& of) {
  Settings settings;
  std::set<std::pair<std::string, std::string>> known;
  for (const auto& at : rank.all<trace::Configuration>())
    for (std::size_t i = 0; at.event->of == of && i < at.event->keys.size(); ++i) {
      const auto& key = at.event->keys[i];
      const auto value = i < at.event->values.size() ? at.event->values[i] : "";
      if (!known.insert({key, value}).second) continue;
      const auto [setting, is_first] = settings.try_emplace(key, value);
      if (!is_first) setting->second += ", then " + value;
    }
  return settings;
}

const trace::Model* model_of(const trace::ParticipantTrace& rank) {
  const auto all = rank.all<trace::Model>();
  return all.empty() ? nullptr : all.front().event;
}

std::string parameter_text(const trace::Model& model, std::size_t i) {
  if (i >= model.shapes.size()) return "none";
  return diagnose::shape_text(model.shapes[i]) +
         (i < model.dtypes.size() ? " " + model.dtypes[i] : "");
}

void compare_models(const trace::Model& a, const trace::Model& b, int rank, Ledger& ledger) {
  const auto places = places_in_b(a.names, b.names);
  for (std::size_t i = 0; i < std::max(a.shapes.size(), b.shapes.size()); ++i) {
    const auto in_a = parameter_text(a, i), in_b = parameter_text(b, place_of(places, i));
    const auto name = name_at(i < a.names.size() ? a.names : b.names, i);
    ledger.texts(kBefore, rank, "parameter " + name, in_a, in_b, in_a != in_b);
  }
}

bool shapes_fit(const trace::Model& a, const trace::Model& b) {
  const auto places = places_in_b(a.names, b.names);
  if (a.shapes.size() != b.shapes.size()) return false;
  for (std::size_t i = 0; i < a.shapes.size(); ++i)
    if (a.shapes[i] != b.shapes[place_of(places, i)]) return false;
  return true;
}

// The ranks to look at: all, or where there are not as many, the first of each run.
std::vector<std::pair<const trace::ParticipantTrace*, const trace::ParticipantTrace*>> ranks_of(
    const Pair& pair) {
  std::vector<std::pair<const trace::ParticipantTrace*, const trace::ParticipantTrace*>> both;
  for (std::size_t r = 0; r < pair.ranks(); ++r)
    both.emplace_back(pair.a.ranks[r], pair.b.ranks[r]);
  return both;
}

void add_cause(std::vector<Difference>& causes, int rank, const std::string& what,
               const std::string& a, const std::string& b) {
  for (auto& each : causes)
    if (each.what == what && each.a == a && each.b == b) {
      if (rank >= 0) each.ranks.push_back(rank);
      return;
    }
  causes.push_back({.step = kBefore, .ranks = {}, .what = what, .a = a, .b = b});
  if (rank >= 0) causes.back().ranks = {rank};
}

}  // namespace

bool models_fit(const Pair& pair) {
  for (const auto& [a, b] : ranks_of(pair)) {
    const auto* in_a = model_of(*a);
    const auto* in_b = model_of(*b);
    if (in_a && in_b && !shapes_fit(*in_a, *in_b)) return false;
  }
  return true;
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

void compare_setup(const Pair& pair, Ledger& ledger) {
  ledger.recorded(has<trace::Model>(pair.a), has<trace::Model>(pair.b));
  for (const auto& [a, b] : ranks_of(pair)) {
    const auto* in_a = model_of(*a);
    const auto* in_b = model_of(*b);
    const int rank = pair.same_ranks ? a->participant.rank : -1;
    if (in_a && in_b) compare_models(*in_a, *in_b, rank, ledger);
  }
}

std::vector<Difference> compare_causes(const Pair& pair) {
  std::vector<Difference> causes;
  // What depends on the number of ranks is no difference where that is one.
  std::vector<std::string> kinds = {"model", "statistics"};
  if (pair.same_ranks) kinds.insert(kinds.end(), {"engine", "loader"});
  for (const auto& [a, b] : ranks_of(pair)) {
    const int rank = pair.same_ranks ? a->participant.rank : -1;
    for (const auto& of : kinds) {
      const auto in_a = settings_of(*a, of), in_b = settings_of(*b, of);
      for (const auto& [key, value] : in_a)
        if (const auto other = in_b.find(key); other != in_b.end() && other->second != value)
          add_cause(causes, rank, of + ": " + key, value, other->second);
    }
  }
  return causes;
}

std::vector<std::string> compare_surroundings(const Pair& pair) {
  std::vector<std::string> notes;
  if (pair.a.ranks.empty() || pair.b.ranks.empty()) return notes;
  const auto in_a = settings_of(*pair.a.ranks[0], "program");
  const auto in_b = settings_of(*pair.b.ranks[0], "program");
  for (const auto& [key, value] : in_a)
    if (const auto other = in_b.find(key); other != in_b.end() && other->second != value)
      notes.push_back(key + ": " + value + " in A, " + other->second + " in B");
  const auto threads = [](const diagnose::Run& run) {
    const auto all = run.ranks[0]->all<trace::Placement>();
    return all.empty() ? std::int64_t{0} : all.back().event->threads;
  };
  const auto a = threads(pair.a), b = threads(pair.b);
  if (a > 0 && b > 0 && a != b)
    notes.push_back("threads of rank 0: " + std::to_string(a) + " in A, " + std::to_string(b) +
                    " in B");
  return notes;
}

}  // namespace lockstep::compare
