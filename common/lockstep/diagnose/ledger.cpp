#include <lockstep/diagnose/averaging.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evaluated.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/layers.h>
#include <lockstep/diagnose/ledger.h>
#include <lockstep/diagnose/nearest.h>
#include <lockstep/diagnose/readings.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>

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
  const auto or_other_shapes = [&](const char* missing) {
    return have_one_layout(run, updates) ? missing : kOtherShapes;
  };
  switch (equation) {
    case Equation::one_job:
      return {.at = static_cast<std::int64_t>(run.ranks.size()),
              .noun = "rank",
              .of = run.world_size,
              .is_enough = run.complete};
    case Equation::equal_start:
      return {.at = replicas_by_step(run).count(-1) > 0 ? 1 : 0,
              .noun = "model",
              .missing = or_other_shapes(
                  "the parameters before the first update were not recorded on all ranks")};
    case Equation::equal_settings:
      return {.at = most<trace::Settings>(run),
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
      return {.at = most<trace::RandomNumbers>(run) + most<trace::RandomState>(run),
              .noun = "generator state",
              .missing = "no random numbers, and no states of generators, were recorded"};
    case Equation::loss_weights: {
      const auto told = most<trace::Loss>(run);
      return {.at = told > 0 ? told : most<trace::Backward>(run),
              .noun = "loss",
              .missing = "no backward was seen"};
    }
    case Equation::mean_gradient:
      if (run.once(take_their_mean))
        return {.idle = "the replicas are averaged, in place of their gradients"};
      return {.at = static_cast<std::int64_t>(gradient_steps(run).size()),
              .noun = "update",
              .of = updates,
              .missing = updates > 0 ? or_other_shapes(kNoGradients) : kUpdatesMissing};
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
              .missing = updates > 0 ? or_other_shapes(
                                           "no step has every rank's parameters after an update")
                                     : kUpdatesMissing};
    }
    case Equation::buffers:
      return {.at = most<trace::Buffers>(run) +
                    most<trace::OutsideParameters>(
                        run, [](const auto& told) { return told.holder == kModelStatistics; }),
              .noun = "buffer record",
              .is_enough = buffers_stay_equal(run),
              .idle = "the model has no buffers"};
    case Equation::joined_figures:
      return {.at = most<trace::Metric>(run) + most<trace::EvaluationInput>(run) +
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
    case Equation::none:  // the ledger has no line for it
      break;
  }
  return {};
}

namespace {

std::string text_of(const Looked& looked) {
  if (looked.of > looked.at)
    return fmt::format("{} of {}", looked.at, plural(looked.of, looked.noun));
  return plural(looked.at, looked.noun);
}

// Where it holds in the end only.
std::string made_equal_again(const Run& run) {
  const auto& all = replicas_by_step(run);
  const auto apart = std::count_if(all.begin(), all.end(), [](const auto& at) {
    return at.first >= 0 && groups_of_equal(at.second).tensor >= 0;
  });
  return apart == 0 ? "" : fmt::format(": apart after {} of them, and made equal again", apart);
}

// No evaluation is of samples that were held out.
std::string of_training(const Run& run) {
  constexpr std::int64_t kEnough = 16;
  const auto told = evaluated(run);
  if (!told || told->samples < kEnough || told->trained == 0 || told->never > 0) return "";
  return fmt::format(": all {} samples that evaluations were given are trained on, too",
                     told->samples);
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
  const Finding* choice = nullptr;
  std::string reason;
  bool is_of_events = false;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& detector = detectors()[i];
    if (detector.equation != equation) continue;
    const auto& verdict = rows[i].verdict;
    for (const auto& finding : verdict.findings)
      if (finding.severity == Severity::violation) violations.push_back(&finding);
    if (verdict.state == State::found && choice == nullptr && !detector.common)
      choice = &verdict.findings.front();
    if (!detector.whole) continue;
    clean = clean || verdict.state == State::clean;
    // What a detector says of its events tells more than that they are not there.
    const bool has_events = detector.missing(run).empty();
    if (!verdict.reason.empty() && (reason.empty() || (has_events && !is_of_events))) {
      reason = verdict.reason;
      is_of_events = has_events;
    }
  }
  if (!violations.empty()) {
    is_broken(line, std::move(violations));
    return line;
  }
  if (choice != nullptr) {
    line.reason = fmt::format("{}: it may be a choice ({})", choice->evidence, choice->pitfall);
    line.step = choice->step;
    line.ranks = choice->ranks;
    return line;
  }
  if (const auto reading = reading_of(run, equation)) {
    line.reason = fmt::format("{}: right where {}", reading->shows, reading->right_where);
    line.step = reading->step;
    line.ranks = reading->ranks;
    return line;
  }
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
  if (equation == Equation::joined_figures) line.looked_at += of_training(run);
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
