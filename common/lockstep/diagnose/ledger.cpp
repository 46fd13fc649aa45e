#include <lockstep/diagnose/averaging.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/ledger.h>
#include <lockstep/diagnose/passes.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>
#include <map>

namespace lockstep::diagnose {
namespace {

template <class T, class Wanted>
std::int64_t most(const Run& run, Wanted wanted) {
  std::int64_t count = 0;
  for (const auto* rank : run.ranks) {
    const auto all = rank->all<T>();
    count = std::max<std::int64_t>(
        count,
        std::count_if(all.begin(), all.end(), [&](const auto& at) { return wanted(*at.event); }));
  }
  return count;
}

template <class T>
std::int64_t most(const Run& run) {
  return most<T>(run, [](const T&) { return true; });
}

constexpr const char* kUpdatesMissing =
    "no update was recorded: step an optimizer of torch.optim, or in C++ one of lockstep's";

Looked samples(const Run& run) {
  Looked looked{
      .at = most<trace::Samples>(run, [](const auto& samples) { return samples.phase == "train"; }),
      .noun = "batch"};
  if (looked.at > 0) return looked;
  looked = {.at = most<trace::Input>(run), .noun = "forward input"};
  looked.missing =
      "no batch was seen on its way into the model: draw batches with a DataLoader, or in C++ from "
      "lockstep's samplers";
  return looked;
}

}  // namespace

Looked looked_at(const Run& run, Equation equation) {
  const auto updates = most<trace::Update>(run);
  switch (equation) {
    case Equation::one_job:
      return {.at = static_cast<std::int64_t>(run.ranks.size()),
              .noun = "rank",
              .of = run.world_size,
              .is_enough = run.complete};
    case Equation::equal_start:
      return {.at = replicas_by_step(run).count(-1) > 0 ? 1 : 0,
              .noun = "model",
              .missing = "the parameters before the first update were not recorded on all ranks"};
    case Equation::equal_settings:
      return {.at = most<trace::Configuration>(run),
              .noun = "option group",
              .missing = "no settings were recorded"};
    case Equation::own_samples:
      return samples(run);
    case Equation::new_order:
      return {
          .at = most<trace::PassBegin>(run, [](const auto& pass) { return pass.phase == "train"; }),
          .noun = "pass",
          .missing =
              "no pass over the train data was seen: draw batches with a DataLoader, or in "
              "C++ from lockstep's samplers"};
    case Equation::modes:
      return {.at = most<trace::Forward>(run),
              .noun = "forward",
              .missing = "no forward of the model was seen"};
    case Equation::random_numbers:
      return {.at = most<trace::RandomNumbers>(run) +
                    most<trace::Configuration>(
                        run, [](const auto& told) { return told.of == "randomness"; }),
              .noun = "generator state",
              .idle = "no random numbers were recorded"};
    case Equation::loss_weights: {
      const auto told = most<trace::Loss>(run);
      return {.at = told > 0 ? told : most<trace::Backward>(run),
              .noun = "loss",
              .missing = "no backward was seen"};
    }
    case Equation::mean_gradient:
      return {.at = static_cast<std::int64_t>(gradient_steps(run).size()),
              .noun = "update",
              .of = updates,
              .missing = updates > 0 ? kNoGradients : kUpdatesMissing};
    case Equation::clipped_once:
      return {.at = most<trace::Clip>(run), .noun = "clipping", .idle = "no gradient was clipped"};
    case Equation::rates:
      return {.at = updates, .noun = "update", .is_enough = true, .missing = kUpdatesMissing};
    case Equation::all_moved:
    case Equation::equal_after: {
      const auto& replicas = replicas_by_step(run);
      return {.at = static_cast<std::int64_t>(replicas.size() - replicas.count(-1)),
              .noun = "update",
              .of = updates,
              .missing = updates > 0 ? "no step has every rank's parameters after an update"
                                     : kUpdatesMissing};
    }
    case Equation::buffers:
      return {.at = most<trace::Buffers>(run),
              .noun = "buffer record",
              .idle = "the model has no buffers"};
    case Equation::joined_figures:
      return {.at = most<trace::Metric>(run) +
                    most<trace::PassBegin>(
                        run, [](const auto& pass) { return pass.phase == "evaluation"; }) +
                    most<trace::Forward>(run, [](const auto& f) { return !f.training; }),
              .noun = "evaluation event",
              .idle = "no evaluation was seen"};
    case Equation::saved_is_held:
      return {.at = most<trace::CheckpointFile>(run) + most<trace::TrainingState>(run),
              .noun = "checkpoint event",
              .idle = "no checkpoint was saved or loaded"};
    case Equation::same_calls:
      return {.at = most<trace::Collective>(run),
              .noun = "call",
              .missing = "no collective was seen: make the groups with init_process_group"};
  }
  return {};
}

namespace {

std::string text_of(const Looked& looked) {
  if (looked.of > looked.at)
    return std::to_string(looked.at) + " of " + plural(looked.of, looked.noun);
  return plural(looked.at, looked.noun);
}

// ---- what the numbers themselves say, where the detectors say nothing: two readings stay open ----

std::string own_gradients(const Run& run) {
  const auto& steps = gradient_steps(run);
  const auto count = static_cast<std::int64_t>(steps.size());
  if (const auto own = std::count_if(steps.begin(), steps.end(), is_unreduced); own > 0)
    return "each rank goes by its own gradient in " + std::to_string(own) + " of " +
           plural(count, "recorded update") + ", and the replicas are made equal otherwise";
  const auto is_sum = [&](const GradientStep& step) {
    const auto times = reduction_scale(step, kRounding);
    return times && is_near(*times, run.world_size, 0.01);
  };
  if (run.world_size > 1 && count > 0 && std::all_of(steps.begin(), steps.end(), is_sum))
    return "the gradient is " + std::to_string(run.world_size) +
           " times the mean of the ranks' own, in all recorded updates: right where each loss is "
           "divided by the number of ranks";
  return "";
}

std::string clipped_sum(const Run& run) {
  if (run.kinds.count(trace::Clip::kName) == 0) return "";
  const auto clips = by_step<trace::Clip>(run);
  const auto is_sum = [&](const GradientStep& step) {
    const auto times = unclipped_scale(run, step);
    return clips.count(step.step) > 0 && times && is_near(*times, run.world_size, 0.01);
  };
  const auto& steps = gradient_steps(run);
  const trace::Clip* last = nullptr;
  std::int64_t step = -1;
  for (const auto& at : run.ranks.front()->all<trace::Clip>()) {
    const bool again = last != nullptr && at.step == step && last->norm > last->max_norm &&
                       are_close(at.event->norm, last->max_norm, 1e-3);
    if (again)
      return "in step " + std::to_string(step) + " the gradient is clipped to " +
             number(last->max_norm) + " and then to " + number(at.event->max_norm) +
             ": right where both limits are meant to hold";
    last = at.event;
    step = at.step;
  }
  if (run.world_size < 2 || steps.empty() || !std::all_of(steps.begin(), steps.end(), is_sum))
    return "";
  return "clipping sees " + std::to_string(run.world_size) +
         " times the mean of the ranks' own gradients, in all recorded updates: right where the "
         "norm is made for a sum";
}

// The steps' first inputs are given once more, one after another.
std::string same_rows_again(const Run& run) {
  constexpr std::size_t kFewest = 8;
  const auto rows = run.ranks.front()->latest<trace::Rows>();
  if (rows.size() < kFewest) return "";
  const auto is_as = [&](std::size_t i, std::size_t j) {
    return rows[i].event->hashes == rows[j].event->hashes;
  };
  std::size_t length = 2;  // of one batch in all steps nothing follows
  while (length < rows.size() && !is_as(0, length)) ++length;
  if (2 * length > rows.size() || is_as(0, 1)) return "";
  for (std::size_t i = length; i < rows.size(); ++i)
    if (!is_as(i, i - length)) return "";
  return "from step " + std::to_string(rows[length].step) + " on the model is given the same " +
         plural(static_cast<std::int64_t>(length), "batch") +
         " in the same order again: right where the order is meant to stay";
}

std::string evaluated_in_training_mode(const Run& run) {
  std::int64_t training = 0, all = 0, step = -1;
  bool evaluates = false;
  for (const auto& event : run.ranks.front()->events) {
    if (const auto* begin = event.as<trace::PassBegin>()) evaluates = begin->phase == "evaluation";
    if (event.is<trace::PassEnd>() || event.is<trace::Update>()) evaluates = false;
    const auto* forward = event.as<trace::Forward>();
    if (!forward || !evaluates) continue;
    ++all;
    training += forward->training ? 1 : 0;
    if (forward->training && step < 0) step = event.step;
  }
  if (training == 0 || training < all) return "";
  return "from step " + std::to_string(step) +
         " on all forwards of evaluations are in training mode: right where dropout and statistics "
         "are meant to move there";
}

// Some sample has other numbers in another pass, or on another rank.
bool samples_vary(const Run& run) {
  std::map<std::int64_t, std::int64_t> seen;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->latest<trace::Contents>())
      for (std::size_t i = 0; i < std::min(at.event->ids.size(), at.event->hashes.size()); ++i) {
        const auto [known, is_new] = seen.try_emplace(at.event->ids[i], at.event->hashes[i]);
        if (!is_new && known->second != at.event->hashes[i]) return true;
      }
  return false;
}

// Of each pass over train data, what the loader's workers seed their generators with.
std::vector<std::string> seeds_of_workers(const trace::ParticipantTrace& rank) {
  std::vector<std::string> seeds;
  each_setting(
      rank.latest<trace::Configuration>(), "workers",
      [&](std::int64_t, const std::string&, const std::string& seed) { seeds.push_back(seed); });
  return seeds;
}

std::string same_seeds_of_workers(const Run& run) {
  const auto first = seeds_of_workers(*run.ranks.front());
  const auto is_same = [&](const auto* rank) { return seeds_of_workers(*rank) == first; };
  if (run.ranks.size() < 2 || first.size() < 2 || !std::ranges::all_of(run.ranks, is_same) ||
      !samples_vary(run))
    return "";
  return "the loaders' workers begin each pass with the same seeds on all ranks, and samples are "
         "not the same each time: right where what is drawn goes by the sample or the rank";
}

std::string drawn_twice(const Run& run) {
  for (const auto& pass : finished_passes(run, "evaluation"))
    if (pass.drawn.again() > 0)
      return "an evaluation drew " + plural(pass.drawn.total, "sample") + ", of which " +
             std::to_string(pass.drawn.different) +
             " are different: whether a figure counts one twice was not seen";
  return "";
}

std::string open_reading(const Run& run, Equation equation) {
  if (run.devices || run.ranks.empty()) return "";
  switch (equation) {
    case Equation::mean_gradient:
      return own_gradients(run);
    case Equation::clipped_once:
      return clipped_sum(run);
    case Equation::new_order:
      return same_rows_again(run);
    case Equation::modes:
      return evaluated_in_training_mode(run);
    case Equation::random_numbers:
      return same_seeds_of_workers(run);
    case Equation::joined_figures:
      return drawn_twice(run);
    default:
      return "";
  }
}

// Where it holds in the end only.
std::string made_equal_again(const Run& run) {
  const auto& all = replicas_by_step(run);
  const auto apart = std::count_if(all.begin(), all.end(), [](const auto& at) {
    return at.first >= 0 && groups_of_equal(at.second).tensor >= 0;
  });
  return apart == 0 ? ""
                    : ": apart after " + std::to_string(apart) + " of them, and made equal again";
}

void is_broken(Line& line, std::vector<const Finding*> violations) {
  std::stable_sort(violations.begin(), violations.end(), [](const auto* a, const auto* b) {
    return std::pair(a->step, is_generic(a->pitfall)) < std::pair(b->step, is_generic(b->pitfall));
  });
  const auto& first = *violations.front();
  line.standing = Standing::broken;
  line.ranks = first.ranks;
  line.step = first.step;
  line.after = first.after;
  line.evidence = first.evidence;
  for (const auto* finding : violations)
    if (std::ranges::find(line.broken_by, finding->pitfall) == line.broken_by.end())
      line.broken_by.push_back(finding->pitfall);
}

Line line_of(const Run& run, Equation equation, const std::vector<Row>& rows) {
  Line line{.equation = equation};
  const auto looked = looked_at(run, equation);
  if (looked.at > 0) line.looked_at = text_of(looked);
  std::vector<const Finding*> violations;
  bool clean = false;
  std::string choice, reason;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& detector = detectors()[i];
    if (detector.equation != equation) continue;
    const auto& verdict = rows[i].verdict;
    for (const auto& finding : verdict.findings)
      if (finding.severity == Severity::violation) violations.push_back(&finding);
    if (verdict.state == State::found && choice.empty() && !detector.common) choice = detector.slug;
    if (!detector.whole) continue;
    clean = clean || verdict.state == State::clean;
    if (!verdict.reason.empty() && reason.empty()) reason = verdict.reason;
  }
  if (!violations.empty()) {
    is_broken(line, std::move(violations));
    return line;
  }
  if (!choice.empty()) {
    line.reason = "it may be a choice: see the advice " + choice;
    return line;
  }
  line.reason = open_reading(run, equation);
  if (!line.reason.empty()) return line;
  if (looked.at == 0) {
    line.standing = looked.idle.empty() ? Standing::open : Standing::idle;
    line.reason = looked.idle.empty() ? looked.missing : looked.idle;
    return line;
  }
  if (!clean && !looked.is_enough) {
    line.reason = reason;
    return line;
  }
  line.standing = Standing::held;
  if (equation == Equation::equal_after) line.looked_at += made_equal_again(run);
  return line;
}

}  // namespace

std::string to_string(Standing standing) {
  switch (standing) {
    case Standing::held:
      return "held";
    case Standing::broken:
      return "broken";
    case Standing::open:
      return "cannot be told";
    case Standing::idle:
      return "nothing to hold";
  }
  return "cannot be told";
}

std::vector<Line> ledger_of(const Run& run, const std::vector<Row>& rows) {
  std::vector<Line> lines;
  for (int i = 0; i < kEquations; ++i)
    lines.push_back(line_of(run, static_cast<Equation>(i), rows));
  return lines;
}

}  // namespace lockstep::diagnose
