// What ranks that train one model are fed.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/differences.h>
#include <lockstep/diagnose/divisors.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/readings.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

namespace lockstep::diagnose {
namespace {
std::vector<Finding> inputs(const Run& run);
std::vector<Finding> same_inputs(const Run& run);
std::vector<Finding> same_gradients(const Run& run);
}  // namespace

std::vector<Detector> feeding_detectors() {
  return {
      // Needs `input` of all ranks on three steps or more. Rule: on each of them the dtype differs,
      // or the number of dimensions. Advice: the sizes differ, but the first and those that vary on
      // a rank; or the mean or the deviation by far more than between one rank's batches; or one
      // rank has at least 4 samples and a quarter more a step than another, in three quarters of
      // each rank's steps. Not fooled by as many samples in more forwards, nor by losses that are told with
      // their weights.
      {.slug = "inputs-differ",
       .equation = Equation::own_samples,
       .needs = {"input"},
       .participants = Participants::ranks,
       .accounts_for = {"losses-differ"},
       .detect = [](const Run& run) { return among_replicas(run, inputs); }},
      // Needs `input` of all ranks on three steps or more. Rule: on each step all of a rank's inputs are like the other
      // ranks' in shape, dtype, mean, deviation, least and greatest number, and of three steps no two are alike. Not
      // fooled by one batch that is trained again and again.
      {.slug = "same-inputs",
       .equation = Equation::own_samples,
       .needs = {"input"},
       .participants = Participants::ranks,
       .accounts_for = {"same-gradients", "shares-of-data-overlap"},
       .detect = [](const Run& run) { return among_replicas(run, same_inputs); }},
      // Needs local gradients of all ranks, of three steps or more. Rule: in each they are equal to the bit, and not in
      // all the same. Not fooled by one batch that is trained again and again without an update.
      {.slug = "same-gradients",
       .equation = Equation::mean_gradient,
       .needs = {"local_gradients"},
       .participants = Participants::ranks,
       .detect = [](const Run& run) { return among_replicas(run, same_gradients); }},
  };
}

namespace {
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
  for (std::size_t i = 1; i < input.shape.size(); ++i) text += fmt::format(", {}", input.shape[i]);
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
      text = fmt::format(
          "{} in the mean, with a standard deviation of {} (from {} to {})", number(mean->means[r]),
          number(deviation->means[r] > kConstant ? std::exp(deviation->means[r]) : 0),
          number(input.least), number(input.greatest));
    texts.push_back(text);
  }
  return differs(run, what, texts, steps.begin()->first);
}

// One number on each rank, as where a target is "real" or "generated".
std::optional<Finding> constants_differ(const Run& run, const InputsOfSteps& steps,
                                        const std::string& what) {
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto& first = *steps.begin()->second[r];
    for (const auto& [step, ranks] : steps)
      if (ranks[r]->deviation != 0 || ranks[r]->mean != first.mean) return std::nullopt;
    texts.push_back(number(first.mean));
  }
  return differs(run, what, texts, steps.begin()->first);
}

// How many samples the forwards of a step were given, by rank; of steps of which every rank recorded one.
std::map<std::int64_t, std::vector<std::int64_t>> samples_by_step(const Run& run) {
  std::map<std::int64_t, std::vector<std::int64_t>> samples;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : run.ranks[r]->latest<trace::Input>()) {
      if (at.event->index != 0 || at.event->shape.empty()) continue;
      auto& ranks = samples[at.step];
      ranks.resize(run.ranks.size());
      ranks[r] += at.event->shape.front();
    }
  std::erase_if(samples, [](const auto& step) {
    return std::find(step.second.begin(), step.second.end(), 0) != step.second.end();
  });
  return samples;
}

// In all steps whose losses' graphs tell, the ranks divide by the same, whatever number of samples each has.
bool count_samples_alike(const Run& run) {
  const auto& steps = divisors_by_step(run);
  return !steps.empty() && std::ranges::all_of(steps, [](const auto& step) {
    return std::ranges::all_of(step.second, [&](const auto& of_rank) {
      return std::ranges::equal(of_rank, step.second.front(),
                                [](double a, double b) { return are_close(a, b, 0.01); });
    });
  });
}

// Compares what most steps of each rank have: the last batch of an epoch may be smaller, and shares may differ by a few.
// Where losses are told, other detectors know how they are weighed.
std::optional<Finding> samples_of_a_step(const Run& run) {
  const auto samples = samples_by_step(run);
  const bool losses_are_told =
      std::any_of(run.ranks.begin(), run.ranks.end(),
                  [](const auto* rank) { return !rank->template latest<trace::Loss>().empty(); });
  if (samples.size() < kAgreeing || losses_are_told || count_samples_alike(run))
    return std::nullopt;
  std::vector<std::int64_t> usual;
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    std::map<std::int64_t, std::size_t> sizes;  // and how many steps have them
    for (const auto& [step, ranks] : samples) ++sizes[ranks[r]];
    const auto& [size, count] =
        *std::max_element(sizes.begin(), sizes.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; });
    if (4 * count < 3 * samples.size()) return std::nullopt;
    usual.push_back(size);
    texts.push_back(std::to_string(size));
  }
  const auto [least, most] = std::minmax_element(usual.begin(), usual.end());
  if (*most - *least < 4 || 4 * *most < 5 * *least) return std::nullopt;
  auto finding = differs(run, "the number of samples of most steps", texts, samples.begin()->first);
  if (finding) finding->evidence += "; a mean over the ranks counts each rank the same";
  return finding;
}

// "input 1", "input 0 of module 3", "the loss's target".
std::string name_of(std::int64_t index) {
  if (index == -1) return "the loss's target";
  if (index < 0) return fmt::format("target {} of the loss", -index);
  const auto module = index / trace::Input::kOfAnother;
  const auto name = fmt::format("input {}", index % trace::Input::kOfAnother);
  return module == 0 ? name : fmt::format("{} of module {}", name, module + 1);
}

// What a loss compares with may be numbered by rank, as where it finds each sample's partner among all ranks': the same
// whole numbers on each step.
bool are_places(const InputsOfSteps& steps) {
  const auto& first = steps.begin()->second;
  for (const auto& [step, ranks] : steps)
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (ranks[r]->dtype.find("int") == std::string::npos) return false;
      const bool is_as_long = ranks[r]->shape == first[r]->shape;  // a last batch may be shorter
      if (is_as_long &&
          (ranks[r]->mean != first[r]->mean || ranks[r]->greatest != first[r]->greatest))
        return false;
    }
  return true;
}

// For each tensor that a forward is given, the first thing that differs.
std::vector<Finding> inputs(const Run& run) {
  std::vector<Finding> findings;
  for (const auto& [index, steps] : run.once(inputs_of)) {
    if (steps.size() < kAgreeing) continue;
    if (index < 0 && are_places(steps)) continue;
    const auto name = name_of(index);
    auto found =
        kinds(run, steps, "the dtype of " + name, [](const auto& input) { return input.dtype; });
    if (!found)
      found = kinds(run, steps, "the number of dimensions of " + name,
                    [](const auto& input) { return std::to_string(input.shape.size()); });
    if (!found) {
      // A rank may have buckets of its own, or batches along another dimension, or weigh its loss.
      found = kinds(run, steps, "the shape of " + name, sample_shape);
      if (!found) found = numbers_fed(run, steps, name);
      if (!found && index == 0) found = samples_of_a_step(run);
      if (!found && index < 0) found = constants_differ(run, steps, name);
      if (found) found->severity = Severity::advice;
    }
    if (found && index < 0)
      found->severity = Severity::advice;  // ranks may have tasks of their own
    if (found) findings.push_back(std::move(*found));
  }
  return findings;
}

using NumbersOfInput =
    std::tuple<std::vector<std::int64_t>, std::string, double, double, double, double>;
NumbersOfInput numbers_of(const trace::Input& input) {
  return {input.shape, input.dtype, input.mean, input.deviation, input.least, input.greatest};
}

// The steps' inputs, in order: equal on all ranks, and of each step others than of the one before.
std::vector<Finding> same_inputs(const Run& run) {
  using Numbers = std::vector<NumbersOfInput>;
  std::map<std::int64_t, std::vector<Numbers>> steps;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : run.ranks[r]->latest<trace::Input>()) {
      const auto& input = *at.event;
      if (input.index < 0 || input.index >= trace::Input::kOfAnother) continue;
      auto& ranks = steps[at.step];
      ranks.resize(run.ranks.size());
      ranks[r].push_back(numbers_of(input));
    }
  std::set<Numbers> different;
  for (const auto& [step, ranks] : steps) {
    if (std::adjacent_find(ranks.begin(), ranks.end(), std::not_equal_to<>()) != ranks.end())
      return {};
    different.insert(ranks.front());
  }
  if (different.size() < kAgreeing) return {};
  return {Finding{
      .ranks = run.numbers,
      .step = steps.begin()->first,
      .evidence = fmt::format("every rank is given the same inputs, and different ones in each of "
                              "{} that were recorded: further ranks add nothing",
                              plural(static_cast<std::int64_t>(different.size()), "step"))}};
}

// In all steps that were recorded each rank's own gradient is every other rank's, and not always the same.
std::vector<Finding> same_gradients(const Run& run) {
  std::set<std::vector<std::uint64_t>> different;
  const auto steps = by_step<trace::LocalGradients>(run);
  for (const auto& [step, ranks] : steps) {
    std::set<std::vector<std::uint64_t>> here;
    for (const auto* rank : ranks) {
      if (!vector_of(rank->values)) return {};
      std::vector<std::uint64_t> hashes;
      for (const auto& value : rank->values) hashes.push_back(value.hash);
      here.insert(std::move(hashes));
    }
    if (here.size() > 1) return {};
    different.merge(here);
  }
  if (different.size() < kAgreeing) return {};
  return {Finding{
      .ranks = run.numbers,
      .step = steps.begin()->first,
      .evidence = fmt::format("every rank's own gradient is the same, to the bit, in each of {} "
                              "that were recorded: the ranks train on the same samples",
                              plural(static_cast<std::int64_t>(steps.size()), "step"))}};
}

bool are_alike_on_ranks(const InputsOfSteps& steps) {
  return std::ranges::all_of(steps, [](const auto& step) {
    return std::ranges::all_of(step.second, [&](const auto* input) {
      return numbers_of(*input) == numbers_of(*step.second.front());
    });
  });
}

}  // namespace

std::optional<Reading> given_alike(const Run& run) {
  std::optional<std::int64_t> alike, other;
  std::int64_t first = 0;
  for (const auto& [index, steps] : run.once(inputs_of)) {
    if (index < 0 || index >= trace::Input::kOfAnother || steps.size() < kAgreeing) continue;
    std::set<NumbersOfInput> different;
    for (const auto& [step, ranks] : steps)
      if (ranks.front()->deviation > 0) different.insert(numbers_of(*ranks.front()));
    if (!are_alike_on_ranks(steps)) {
      other = other ? other : index;
    } else if (!alike && different.size() == steps.size()) {
      alike = index;
      first = steps.begin()->first;
    }
  }
  if (!alike || !other) return {};
  return Reading{
      fmt::format("{} of the model is the same on all ranks, and another in each recorded step, "
                  "while {} differs: for other data the ranks draw the same random numbers",
                  name_of(*alike), name_of(*other)),
      "it goes by the step, or is one draw for the whole batch", first};
}

}  // namespace lockstep::diagnose
