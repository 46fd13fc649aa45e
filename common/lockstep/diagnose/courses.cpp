#include <lockstep/base/text.h>
#include <lockstep/diagnose/courses.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/stall.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

namespace lockstep::diagnose {

std::pair<std::int64_t, std::int64_t> Course::paces() const {
  auto least = positions[1] - positions[0], most = least;
  for (std::size_t i = 1; i + 1 < positions.size(); ++i) {
    const auto pace = positions[i + 1] - positions[i];
    if (i + 2 == positions.size() && pace < least) break;  // the run ends before the next update
    least = std::min(least, pace);
    most = std::max(most, pace);
  }
  return {least, most};
}

std::optional<std::int64_t> Course::pace() const {
  const auto [least, most] = paces();
  return least == most ? std::optional(least) : std::nullopt;
}

bool Course::moves_once_a_pass() const {
  for (std::size_t i = 1; i < rates.size(); ++i) {
    const bool begins = std::binary_search(pass_begins.begin(), pass_begins.end(), i);
    if (positions[i] - positions[i - 1] != (begins ? 1 : 0)) return false;
  }
  return passes() > 1;
}

Course course_of(const trace::ParticipantTrace& rank) {
  Course course;
  std::int64_t position = 0, begun = 0, ended = 0;
  bool told = false;         // a schedule, since the last update
  bool are_several = false;  // schedules: none of them tells when all end
  for (const auto& event : rank.events) {
    if (event.as<trace::Engine>() != nullptr && !course.rates.empty()) {
      course = {};  // what was trained before was another model
      begun = ended = 0;
      told = are_several = false;
    } else if (const auto* schedule = event.as<trace::Schedule>()) {
      position = schedule->position;
      are_several = are_several || (told && schedule->length != course.length);
      course.length = schedule->length;
      told = true;
    } else if (const auto* update = event.as<trace::Update>()) {
      course.positions.push_back(position);
      course.rates.push_back(update->lr.empty() ? 0.0 : update->lr.front());
      told = false;
    } else if (const auto* begin = event.as<trace::PassBegin>()) {
      if (begin->phase != "train") continue;
      course.pass_begins.push_back(course.rates.size());
      ++begun;
    } else if (const auto* end = event.as<trace::PassEnd>()) {
      if (end->phase == "train") ++ended;
    }
  }
  course.positions.push_back(position);
  if (are_several) course.length = 0;
  course.ended = rank.closed && begun == ended;
  course.leaves_passes = rank.closed && ended == 0 && begun > 1;
  return course;
}

std::optional<Course> course_of(const Run& run, Verdict* why) {
  auto course = course_of(*run.ranks.front());
  if (!ended_in_order(run)) course.ended = course.leaves_passes = false;
  if (course.length <= 0)
    *why = not_triggered("no schedule and the steps it was made for were recorded");
  else if (course.updates() < 4)
    *why = not_triggered("fewer than four updates were recorded");
  else
    return course;
  return std::nullopt;
}

std::string made_for(const Course& course) {
  return "the schedule was made for " + plural(course.length, "step");
}

namespace {

constexpr std::size_t kPoints = 8;  // on the curve, before it is called one

// How many updates after `first` the rates come to 0, if `left` (of the highest rate: what is left of it) of them is told
// by that number.
template <class Left, class Steps>
std::optional<double> steps_to_zero(const std::vector<double>& rates, std::size_t first, Left left,
                                    Steps steps) {
  const auto last = rates.size() - 1;
  const double all = steps(static_cast<double>(last - first), rates[last] / rates[first]);
  for (std::size_t t = first; t <= last; ++t)
    if (std::abs(left(static_cast<double>(t - first) / all) - rates[t] / rates[first]) > 1e-4)
      return std::nullopt;
  return static_cast<double>(first) + all;
}

}  // namespace

std::optional<Curve> curve_of(const std::vector<double>& rates) {
  const auto is_finite = [](double rate) { return std::isfinite(rate); };
  if (!std::ranges::all_of(rates, is_finite)) return std::nullopt;
  const auto highest = std::max_element(rates.rbegin(), rates.rend());
  if (highest == rates.rend() || *highest <= 0) return std::nullopt;
  const auto first = static_cast<std::size_t>(rates.rend() - highest) - 1;
  if (rates.size() - first < kPoints || rates.back() <= 0.01 * *highest) return std::nullopt;
  const auto is_falling = std::adjacent_find(rates.begin() + static_cast<std::ptrdiff_t>(first),
                                             rates.end(), std::less_equal<>()) == rates.end();
  if (!is_falling) return std::nullopt;
  const auto line = steps_to_zero(
      rates, first, [](double share) { return 1 - share; },
      [](double gone, double left) { return gone / (1 - left); });
  const auto cosine = steps_to_zero(
      rates, first, [](double share) { return (1 + std::cos(std::numbers::pi * share)) / 2; },
      [](double gone, double left) { return gone * std::numbers::pi / std::acos(2 * left - 1); });
  if (const auto end = line ? line : cosine) return Curve{std::llround(*end), line.has_value()};
  return std::nullopt;
}

}  // namespace lockstep::diagnose
