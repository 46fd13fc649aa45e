// What a run tells of itself: its metrics and its checkpoints.
#include <lockstep/base/hash.h>
#include <lockstep/base/text.h>
#include <lockstep/compare/looks.h>
#include <lockstep/diagnose/differences.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

namespace lockstep::compare {
namespace {

std::string figure_text(const trace::Metric& metric) {
  return number_text(metric.sum) + " of " + number_text(metric.count);
}

// The figures of one rank at one step, by phase and name; several of a name in order.
std::map<std::string, std::vector<const trace::Metric*>> figures_of(
    const std::vector<const trace::Metric*>& metrics) {
  std::map<std::string, std::vector<const trace::Metric*>> figures;
  for (const auto* each : metrics) {
    const auto of_phase = each->phase + (each->phase.empty() ? "" : " ");
    figures[of_phase + (each->name.empty() ? "mean that the program reads" : each->name)].push_back(
        each);
  }
  return figures;
}

void compare_figures(const Pair& pair, At at, const std::string& what, const trace::Metric& a,
                     const trace::Metric& b, Seen& seen) {
  seen.compared(at.step);
  if (a.sum == b.sum && a.count == b.count) return;
  const double in_a = a.count != 0 ? a.sum / a.count : a.sum,
               in_b = b.count != 0 ? b.sum / b.count : b.sum;
  const auto scale = std::max(std::abs(in_a), std::abs(in_b));
  if (pair.same_ranks && a.count != b.count)
    seen.texts(at, what, figure_text(a), figure_text(b), true);
  else
    seen.distance(at, what,
                  {figure_text(a), figure_text(b), scale > 0 ? std::abs(in_a - in_b) / scale : 0,
                   std::max(diagnose::metric_tolerance(std::min(a.count, b.count)),
                            pair.tolerance(diagnose::Quantity::loss, at.step))});
}

using Files = std::vector<const trace::CheckpointFile*>;

// By the hash of a file's bytes, the last step at which the run wrote them.
using Written = std::map<std::uint64_t, std::int64_t>;

Written written_by(const diagnose::Run& run) {
  Written written;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<trace::CheckpointFile>())
      if (at.event->action == "save_end" && at.event->content != 0) {
        auto& last = written.try_emplace(at.event->content, at.step).first->second;
        last = std::max(last, at.step);
      }
  return written;
}

bool was_restarted(const diagnose::Run& run) {
  return std::any_of(run.ranks.begin(), run.ranks.end(),
                     [](const auto* rank) { return rank->last_attempt > 0; });
}

std::string actions_text(const Files& files, const Written& written, bool with_loads) {
  std::string text;
  for (const auto* each : files) {
    if (each->action == "load" && !with_loads) continue;
    text += (text.empty() ? "" : ", ") + each->action + (each->accepted ? "" : " refused") +
            (each->to.empty() ? "" : " to " + list(each->to));
    if (const auto known = written.find(each->content);
        each->action == "load" && known != written.end())
      text += " of what was saved at step " + std::to_string(known->second);
  }
  return text.empty() ? "none" : text;
}

std::set<std::string> saved_names(const Files& files) {
  std::set<std::string> names;
  for (const auto* each : files)
    if (each->action == "save_end") names.insert(each->keys.begin(), each->keys.end());
  return names;
}

std::string missing_text(const std::set<std::string>& names, const std::set<std::string>& others) {
  constexpr std::size_t kShown = 6;
  std::vector<std::string> missing;
  std::set_difference(names.begin(), names.end(), others.begin(), others.end(),
                      std::back_inserter(missing));
  return missing.empty() ? "none" : diagnose::some_of(std::move(missing), kShown);
}

// Not of a value that is no dict, nor of an older trace: these tell no names.
void compare_saved_names(At at, const Files& a, const Files& b, Seen& seen) {
  const auto of_a = saved_names(a), of_b = saved_names(b);
  if (of_a.empty() || of_b.empty()) return;
  seen.texts(at, "names in a saved file that the other run's lacks", missing_text(of_a, of_b),
             missing_text(of_b, of_a), of_a != of_b);
}

// By a call. What a C++ job records without one has the model and the optimizer alone, and other hashes than a call makes.
bool is_told(const trace::TrainingState& state) {
  return std::any_of(state.names.begin(), state.names.end(),
                     [](const auto& name) { return name != "model" && name != "optimizer"; });
}

void compare_states(At at, const trace::TrainingState& a, const trace::TrainingState& b,
                    bool rounded, bool same_ranks, Seen& seen) {
  if (is_told(a) != is_told(b)) return;
  seen.compared(at.step);
  std::map<std::string, std::uint64_t> of_b;
  for (std::size_t i = 0; i < b.names.size(); ++i) of_b[b.names[i]] = b.hashes[i];
  for (std::size_t i = 0; i < a.names.size(); ++i) {
    const auto& name = a.names[i];
    // Ranks draw other random numbers where there are more of them.
    if (name == "rng_state" && !same_ranks) continue;
    const auto what = name + " as " + a.moment;
    const auto other = of_b.find(name);
    if (other == of_b.end()) {
      seen.texts(at, what, "there", "missing", true);
    } else if (other->second != a.hashes[i]) {
      if (rounded && name != "rng_state")
        seen.rounding();
      else
        seen.texts(at, what, hexadecimal(a.hashes[i]), hexadecimal(other->second), true);
    }
    of_b.erase(name);
  }
  for (const auto& [name, hash] : of_b)
    if (name != "rng_state" || same_ranks)
      seen.texts(at, name + " as " + b.moment, "missing", "there", true);
}

}  // namespace

void compare_metrics(const Pair& pair, Seen& seen) {
  for_each_rank<trace::Metric>(pair, [&](At at, const auto& in_a, const auto& in_b) {
    const auto of_b = figures_of(in_b);
    for (const auto& [what, figures] : figures_of(in_a))
      if (const auto others = of_b.find(what); others != of_b.end())
        for (std::size_t i = 0; i < std::min(figures.size(), others->second.size()); ++i)
          compare_figures(pair, at, what, *figures[i], *others->second[i], seen);
  });
}

void compare_checkpoints(const Pair& pair, std::optional<std::int64_t> rounded,
                         std::optional<std::int64_t> differ, Seen& seen) {
  const auto files_a = events_by_step<trace::CheckpointFile>(pair.a),
             files_b = events_by_step<trace::CheckpointFile>(pair.b);
  const auto written_a = written_by(pair.a), written_b = written_by(pair.b);
  // A job that went on from a checkpoint is compared with one that ran through: what it loads is no difference.
  const bool loads = was_restarted(pair.a) == was_restarted(pair.b);
  for (const auto step : steps_of_either(files_a, files_b)) {
    const auto in_a = events_at(files_a, step, pair.a), in_b = events_at(files_b, step, pair.b);
    for (std::size_t r = 0; r < pair.ranks(); ++r) {
      seen.texts({step, pair.rank(r)}, "checkpoint files", actions_text(in_a[r], written_a, loads),
                 actions_text(in_b[r], written_b, loads));
      compare_saved_names({step, pair.rank(r)}, in_a[r], in_b[r], seen);
    }
  }
  for_each_in_both<trace::TrainingState>(pair, [&](At at, const auto& of_a, const auto& of_b) {
    const bool only_rounded = rounded && *rounded <= at.step && !(differ && *differ < at.step);
    compare_states(at, of_a, of_b, only_rounded, pair.same_ranks, seen);
  });
}

}  // namespace lockstep::compare
