#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/weights.h>

#include <algorithm>
#include <cmath>

namespace lockstep::diagnose {
namespace {

using Maybe = std::optional<Reading>;

// Samples that a forward was given, and what the loss of its outputs was divided by. (A loss of several terms is left
// out: which of them counts samples is not known.)
struct Part {
  double samples = 0, divisor = 0;
};
struct Weights {
  std::int64_t step = -1;
  std::vector<Part> parts;
  // Of all samples together: 1 for the mean of a batch.
  double sum() const {
    double all = 0;
    for (const auto& part : parts) all += part.samples / part.divisor;
    return all;
  }
};

// Of updates whose losses and inputs were all recorded.
std::vector<Weights> weights_of(const trace::ParticipantTrace& rank) {
  std::vector<Weights> all;
  for (const auto& update : cut_at_updates(rank, rank.last_attempt)) {
    const auto inputs = update.all<trace::Input>().where([](const auto& at) {
      return at.event->index == 0 && !at.event->shape.empty() && at.event->shape.front() > 0;
    });
    const auto losses = update.all<trace::LossDivisors>();
    const auto is_one = [](const auto& at) {
      return at.event->values.size() == 1 && at.event->values.front() > 0;
    };
    if (!update.updated || losses.empty() || losses.size() != inputs.size() ||
        losses.size() != update.all<trace::Backward>().size() ||
        !std::ranges::all_of(losses, is_one))
      continue;
    const auto* scaled = update.last<trace::ScaledStep>();
    const double scale = scaled ? scaled->scale : 1;
    all.push_back({update.step, {}});
    for (std::size_t i = 0; i < losses.size(); ++i)
      all.back().parts.push_back({static_cast<double>(inputs[i].event->shape.front()),
                                  losses[i].event->values.front() * scale});
  }
  return all;
}

bool differ(double a, double b) {
  return !are_close(a, b, 0.01);
}

std::string text_of(const Part& part) {
  return fmt::format("{} divided by {}", number(part.samples), number(part.divisor));
}

Maybe within_an_update(const std::vector<Weights>& updates) {
  for (const auto& update : updates) {
    const auto [least, most] = std::ranges::minmax(update.parts, {}, &Part::divisor);
    if (differ(least.divisor, most.divisor) && differ(least.samples, most.samples))
      return Reading{
          fmt::format(
              "an update's batches do not count by their samples: the loss of {}, and of {}",
              text_of(least), text_of(most)),
          "each batch is to count as much, or the samples of one have more parts", update.step};
  }
  return {};
}

// An update of fewer batches than the others, whose losses are divided as if it had as many.
Maybe divided_by_too_many(const std::vector<Weights>& updates) {
  const auto count = [](const Weights& update) { return static_cast<double>(update.parts.size()); };
  const auto whole = std::ranges::max(updates, {}, count);
  std::vector<double> sums;  // of updates that have all
  for (const auto& update : updates)
    if (count(update) == count(whole)) sums.push_back(update.sum());
  if (sums.size() < 3) return {};
  std::ranges::nth_element(sums, sums.begin() + static_cast<std::ptrdiff_t>(sums.size() / 2));
  const double usual = sums[sums.size() / 2];
  for (const auto& update : updates)
    if (count(update) < count(whole) &&
        are_close(update.sum() / usual, count(update) / count(whole), 0.1))
      return Reading{fmt::format("this update has {} of {}, and its loss is divided as if it had "
                                 "all of them: it counts {} times as much as the others",
                                 number(count(update)),
                                 plural(static_cast<std::int64_t>(whole.parts.size()), "batch"),
                                 number(update.sum() / usual)),
                     "an update of fewer samples is to move the parameters less", update.step};
  return {};
}

// In most updates one rank's samples count more than another's.
Maybe between_ranks(const Run& run, const std::vector<std::vector<Weights>>& ranks) {
  std::int64_t looked = 0, unequal = 0;
  Maybe first;
  for (std::size_t k = 0; k < ranks.front().size(); ++k) {
    std::vector<Part> parts;
    for (const auto& rank : ranks)
      if (k < rank.size() && rank[k].step == ranks[0][k].step && rank[k].parts.size() == 1)
        parts.push_back(rank[k].parts.front());
    if (parts.size() != ranks.size()) continue;
    ++looked;
    const auto [least, most] = std::ranges::minmax(parts, {}, &Part::divisor);
    if (!differ(least.divisor, most.divisor) || !differ(least.samples, most.samples)) continue;
    if (unequal++ == 0)
      first = Reading{fmt::format("ranks' samples do not count alike: the loss of {} on one rank, "
                                  "and of {} on another",
                                  text_of(least), text_of(most)),
                      "each rank is to count as much, whatever it draws", ranks[0][k].step};
  }
  return run.world_size > 1 && looked >= 3 && 2 * unequal > looked ? first : std::nullopt;
}

// As many samples of each batch are left out of the loss: a few, and a whole number.
Maybe of_fewer_numbers(const std::vector<Weights>& updates) {
  const auto left_out = [](const Part& part) { return part.samples - part.divisor; };
  const double some = left_out(updates.front().parts.front());
  for (const auto& update : updates) {
    const auto& part = update.parts.front();
    if (update.parts.size() > 1 || left_out(part) != some || some < 1 || some != std::floor(some) ||
        4 * some > part.samples)
      return {};
  }
  return Reading{
      fmt::format("forwards are given {} samples, and each loss is the mean of {} fewer numbers",
                  number(updates.front().parts.front().samples), number(some)),
      "some are not to be learned from, such as padding", updates.front().step};
}

}  // namespace

std::optional<Reading> unequal_weights(const Run& run) {
  std::vector<std::vector<Weights>> ranks;
  for (const auto* rank : run.ranks) ranks.push_back(weights_of(*rank));
  for (const auto& rank : ranks)
    if (rank.empty()) return {};
  for (const auto& updates : ranks) {
    if (auto within = within_an_update(updates)) return within;
    if (auto short_one = divided_by_too_many(updates)) return short_one;
  }
  if (auto between = between_ranks(run, ranks)) return between;
  return of_fewer_numbers(ranks.front());
}

}  // namespace lockstep::diagnose
