// How ranks that train one model are set up, what they feed it, and how much their losses weigh.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/gradients.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <set>

namespace lockstep::diagnose {
namespace {

constexpr std::size_t kAgreeing = 3;  // probed steps, before a value is called a rank's own

// "a, b and 5 more".
std::string some_of(std::vector<std::string> parts) {
  constexpr std::size_t kNamed = 3;
  if (parts.size() > kNamed + 1) {
    const auto more = parts.size() - kNamed;
    parts.resize(kNamed);
    parts.push_back(std::to_string(more) + " more");
  }
  return list(parts);
}

// One text for each rank. Where they differ: `what`, and who has which. The caller names the finding.
std::optional<Finding> differs(const Run& run, const std::string& what,
                               const std::vector<std::string>& texts, std::int64_t step) {
  const auto odd = odd_ones_out(run.numbers, texts);
  if (odd.empty()) return std::nullopt;
  std::map<std::string, std::vector<int>> ranks_with;
  std::vector<std::string> in_order, who;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    auto& ranks = ranks_with[texts[r]];
    if (ranks.empty()) in_order.push_back(texts[r]);
    ranks.push_back(run.numbers[r]);
  }
  for (const auto& text : in_order)
    who.push_back(text + " on " + lockstep::ranks_text(ranks_with[text]));
  return Finding{.ranks = odd, .step = step, .evidence = what + " is " + some_of(who)};
}

// The group of each rank: of sorted values, a gap wider than `apart` begins a new one.
std::vector<std::size_t> groups_by_gap(const std::vector<double>& values, double apart) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return values[a] < values[b]; });
  std::vector<std::size_t> groups(values.size());
  for (std::size_t i = 1; i < order.size(); ++i)
    groups[order[i]] =
        groups[order[i - 1]] + (values[order[i]] - values[order[i - 1]] > apart ? 1 : 0);
  return groups;
}

// ---- configuration ----

using Settings = std::map<std::string, std::string>;

// As the last attempt has it. What a program sets up again, such as a second model, is not looked at.
Settings settings_of(const trace::ParticipantTrace& rank, const std::string& of) {
  Settings settings;
  auto events = rank.latest<trace::Configuration>();
  if (events.empty()) events = rank.all<trace::Configuration>();
  for (const auto& at : events)
    for (std::size_t i = 0; i < std::min(at.event->keys.size(), at.event->values.size()); ++i)
      if (at.event->of == of) settings.emplace(at.event->keys[i], at.event->values[i]);
  return settings;
}

// All settings that differ, in one finding. A setting that a rank lacks is left alone: a sharded optimizer has other
// groups on each rank.
std::vector<Finding> settings_that_differ(const Run& run, const std::string& of,
                                          Severity severity = Severity::violation) {
  std::vector<Settings> settings;
  for (const auto* rank : run.ranks) settings.push_back(settings_of(*rank, of));
  std::vector<std::string> evidence;
  std::set<int> ranks;
  for (const auto& [key, value] : settings.front()) {
    std::vector<std::string> values;
    for (const auto& of_rank : settings)
      if (const auto found = of_rank.find(key); found != of_rank.end())
        values.push_back(found->second);
    if (values.size() < settings.size()) continue;
    const auto one = differs(run, key, values, 0);
    if (!one) continue;
    evidence.push_back(one->evidence);
    ranks.insert(one->ranks.begin(), one->ranks.end());
  }
  if (evidence.empty()) return {};
  return {{.severity = severity,
           .ranks = {ranks.begin(), ranks.end()},
           .step = 0,
           .evidence = some_of(evidence)}};
}

// Other batches, versions or variables may be a choice.
std::vector<Finding> configuration(const Run& run) {
  auto findings = settings_that_differ(run, "model");
  for (const auto& [of, severity] : {std::pair{"engine", Severity::violation},
                                     {"loader", Severity::advice},
                                     {"program", Severity::advice}})
    for (auto& finding : settings_that_differ(run, of, severity))
      findings.push_back(std::move(finding));
  return findings;
}

std::vector<Finding> optimizers(const Run& run) {
  return settings_that_differ(run, "optimizer");
}

// ---- inputs ----

using InputsOfSteps =
    std::map<std::int64_t, std::vector<const trace::Input*>>;  // by step, then by rank

// By the tensor's place in the forward: what the first forward of each step was given, where all ranks recorded it.
std::map<std::int64_t, InputsOfSteps> inputs_of(const Run& run) {
  std::map<std::int64_t, InputsOfSteps> inputs;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : run.ranks[r]->latest<trace::Input>())
      if (auto& there = inputs[at.event->index][at.step]; there.size() == r)
        there.push_back(at.event);
  for (auto& [index, steps] : inputs)
    std::erase_if(steps, [&](const auto& step) { return step.second.size() < run.ranks.size(); });
  return inputs;
}

// What `text` says of each rank's input, where it is the same on every step of a rank.
std::optional<Finding> kinds(const Run& run, const InputsOfSteps& steps, const std::string& what,
                             const std::function<std::string(const trace::Input&)>& text) {
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    texts.push_back(text(*steps.begin()->second[r]));
    for (const auto& [step, ranks] : steps)
      if (text(*ranks[r]) != texts.back()) return std::nullopt;
  }
  return differs(run, what, texts, steps.begin()->first);
}

// The first dimension is the batch, which may differ.
std::string sample_shape(const trace::Input& input) {
  std::string text = "[N";
  for (std::size_t i = 1; i < input.shape.size(); ++i)
    text += ", " + std::to_string(input.shape[i]);
  return text + "]";
}

// What `value` says of each rank's inputs over the steps; its spread is what it varies by on one rank.
struct Statistic {
  std::vector<double> means;  // of each rank
  double spread = 0;
};
std::optional<Statistic> statistic(const InputsOfSteps& steps, std::size_t ranks,
                                   const std::function<double(const trace::Input&)>& value) {
  Statistic result;
  for (std::size_t r = 0; r < ranks; ++r) {
    std::vector<double> values;
    for (const auto& [step, inputs] : steps) values.push_back(value(*inputs[r]));
    if (!std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); }))
      return std::nullopt;
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    result.spread = std::max(result.spread, *most - *least);
    result.means.push_back(std::accumulate(values.begin(), values.end(), 0.0) /
                           static_cast<double>(values.size()));
  }
  return result;
}

// Shards may differ in what they hold, so this is advice, and only where ranks lie further apart than twice what one
// rank's batches do.
std::optional<Finding> numbers_fed(const Run& run, const InputsOfSteps& steps,
                                   const std::string& what) {
  const auto mean =
      statistic(steps, run.ranks.size(), [](const auto& input) { return input.mean; });
  constexpr double kConstant = -50;  // the logarithm of a deviation of nothing
  const auto deviation = statistic(steps, run.ranks.size(), [](const auto& input) {
    return input.deviation > 0 ? std::log(input.deviation) : kConstant;
  });
  if (!mean || !deviation) return std::nullopt;
  double scale = 0;  // the least deviation of a rank whose inputs vary
  for (const double value : deviation->means)
    if (value > kConstant && (scale == 0 || std::exp(value) < scale)) scale = std::exp(value);
  if (scale == 0) return std::nullopt;
  const auto by_mean = groups_by_gap(mean->means, std::max(2 * mean->spread, scale / 2));
  const auto by_deviation =
      groups_by_gap(deviation->means, std::max(2 * deviation->spread, std::log(1.5)));
  std::map<std::pair<std::size_t, std::size_t>, std::string> text_of_group;  // its first rank's
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    auto& text = text_of_group[{by_mean[r], by_deviation[r]}];
    const auto& input = *steps.begin()->second[r];
    if (text.empty())
      text = number(mean->means[r]) + " in the mean, with a standard deviation of " +
             number(deviation->means[r] > kConstant ? std::exp(deviation->means[r]) : 0) +
             " (from " + number(input.least) + " to " + number(input.greatest) + ")";
    texts.push_back(text);
  }
  return differs(run, what, texts, steps.begin()->first);
}

// For each tensor that a forward is given, the first thing that differs.
std::vector<Finding> inputs(const Run& run) {
  std::vector<Finding> findings;
  for (const auto& [index, steps] : inputs_of(run)) {
    if (steps.size() < kAgreeing) continue;
    const auto name = "input " + std::to_string(index);
    auto found =
        kinds(run, steps, "the dtype of " + name, [](const auto& input) { return input.dtype; });
    if (!found)
      found = kinds(run, steps, "the number of dimensions of " + name,
                    [](const auto& input) { return std::to_string(input.shape.size()); });
    if (!found) {
      // A rank may have buckets of its own, or batches along another dimension.
      found = kinds(run, steps, "the shape of " + name, sample_shape);
      if (!found) found = numbers_fed(run, steps, name);
      if (found) found->severity = Severity::advice;
    }
    if (found) findings.push_back(std::move(*found));
  }
  return findings;
}

// ---- losses ----

// All losses of a step, and the scale they were multiplied by.
struct StepLoss {
  double backward = 0, sum = 0, scale = 1;
  std::int64_t count = 0;
};

std::map<std::int64_t, std::vector<StepLoss>> losses_by_step(const Run& run) {
  std::map<std::int64_t, std::vector<StepLoss>> steps;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto at_step = [&](std::int64_t step) -> StepLoss& {
      auto& ranks = steps[step];
      ranks.resize(run.ranks.size());
      return ranks[r];
    };
    for (const auto& at : run.ranks[r]->latest<trace::Loss>()) {
      auto& loss = at_step(at.step);
      loss.backward += at.event->backward_value;
      loss.sum += at.event->sum;
      loss.count += at.event->count;
    }
    for (const auto& at : run.ranks[r]->latest<trace::ScaledStep>())
      at_step(at.step).scale = at.event->scale;
  }
  return steps;
}

// What each rank's mean loss is multiplied by before backward, over the first rank's. Nothing where ranks have different
// numbers of samples, which are weighted on purpose.
std::optional<std::vector<double>> weights(const std::vector<StepLoss>& losses) {
  std::vector<double> weights;
  for (const auto& loss : losses) {
    if (loss.count != losses.front().count || loss.count == 0 || loss.sum == 0 || loss.scale == 0)
      return std::nullopt;
    weights.push_back(loss.backward / loss.scale * static_cast<double>(loss.count) / loss.sum);
  }
  const double first = weights.front();
  if (first == 0 || !std::isfinite(first)) return std::nullopt;
  for (auto& weight : weights) weight /= first;
  return weights;
}

// A loss with further terms weighs differently on each step, so it is left alone.
std::vector<Finding> loss_weights(const Run& run) {
  std::vector<std::vector<double>> of_steps;
  std::int64_t first = -1;
  for (const auto& [step, losses] : losses_by_step(run)) {
    auto found = weights(losses);
    if (!found) continue;
    if (of_steps.empty()) first = step;
    of_steps.push_back(std::move(*found));
    for (std::size_t r = 0; r < run.ranks.size(); ++r)
      if (!is_near(of_steps.back()[r], of_steps.front()[r], 0.01)) return {};
  }
  if (of_steps.size() < kAgreeing) return {};
  const auto groups = groups_by_gap(of_steps.front(), 0.05);
  std::map<std::size_t, double> weight_of;  // of each group's first rank
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < groups.size(); ++r)
    texts.push_back(number(weight_of.try_emplace(groups[r], of_steps.front()[r]).first->second));
  auto finding =
      differs(run, "the weight of the loss, relative to the first rank's,", texts, first);
  return finding ? std::vector{*finding} : std::vector<Finding>{};
}

// What `find` finds in ranks that train one model.
Verdict among_replicas(const Run& run, std::vector<Finding> (*find)(const Run&)) {
  if (!train_one_model(run)) return not_triggered("no sign that these ranks train one model");
  Verdict verdict = clean();
  verdict.findings = find(run);
  if (!verdict.findings.empty()) verdict.state = State::found;
  return verdict;
}

}  // namespace

std::vector<Detector> setup_detectors() {
  return {
      // Rule: a setting of a submodule or of the gradient engine that all of them have differs, such
      // as a dropout's p. Advice: one of a train loader, a version, or a variable of the environment.
      {.slug = "configuration-differs",
       .needs = {"configuration"},
       .participants = Participants::ranks,
       .generic = "ranks that train one model have another setting of one of its modules, such as "
                  "a dropout's p, or of its gradient engine (a violation), another batch size, "
                  "version, script or variable (advice)",
       .detect = [](const Run& run) { return among_replicas(run, configuration); }},
      // The same of an optimizer's parameter group: its type, or an option such as the weight
      // decay. Not fooled by ranks that have groups of their own.
      {.slug = "optimizer-differs",
       .needs = {"configuration"},
       .participants = Participants::ranks,
       .generic = "ranks that train one model have another option of the optimizer, such as the "
                  "weight decay, or of its schedule",
       .accounts_for = {"update-differs", "replicas-diverged"},
       .detect = [](const Run& run) { return among_replicas(run, optimizers); }},
      // Needs `input` of all ranks on three steps or more. Rule: on each of them the dtype differs,
      // or the number of dimensions. Advice: the sizes differ, but the first and those that vary on
      // a rank; or the mean or the deviation differs by far more than between one rank's batches.
      {.slug = "inputs-differ",
       .needs = {"input"},
       .participants = Participants::ranks,
       .generic = "ranks that train one model feed it otherwise: another dtype or number of "
                  "dimensions (a violation), other sizes or values (advice)",
       .detect = [](const Run& run) { return among_replicas(run, inputs); }},
      // Needs `loss` of all ranks on three steps or more. Rule: on each of them a rank's backward()
      // starts from another multiple of its mean loss than the first rank's, always the same. Not
      // fooled by unequal batches, whose losses may weigh unequally, by a scaler's scale, nor by a
      // term that is added.
      {.slug = "loss-weight-differs",
       .needs = {"loss"},
       .participants = Participants::ranks,
       .generic = "one rank's loss counts more than another's",
       .accounts_for = {"gradient-not-the-mean"},
       .detect = [](const Run& run) { return among_replicas(run, loss_weights); }},
  };
}

}  // namespace lockstep::diagnose
