#include <lockstep/diagnose/averaging.h>
#include <lockstep/diagnose/courses.h>
#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/evaluated.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/layers.h>
#include <lockstep/diagnose/passes.h>
#include <lockstep/diagnose/readings.h>
#include <lockstep/diagnose/tolerance.h>
#include <lockstep/diagnose/weights.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace lockstep::diagnose {
namespace {

using Maybe = std::optional<Reading>;

std::string times_the_mean(const Run& run) {
  return fmt::format("{} times the mean of the ranks' own", run.world_size);
}

// In all recorded updates the gradient, by `scale`, is so many times the mean.
template <class Scale>
bool are_sums(const Run& run, Scale scale) {
  const auto& steps = gradient_steps(run);
  return run.world_size > 1 && !steps.empty() &&
         std::ranges::all_of(steps, [&](const GradientStep& step) {
           const std::optional<double> times = scale(step);
           return times && is_near(*times, run.world_size, 0.01);
         });
}

Maybe own_gradients(const Run& run) {
  const auto& steps = gradient_steps(run);
  const auto own = std::ranges::count_if(steps, is_unreduced);
  if (own > 0 && run.once(take_their_mean)) return {};
  if (own > 0)
    return Reading{fmt::format("each rank goes by its own gradient in {} of {}", own,
                               plural(static_cast<std::int64_t>(steps.size()), "recorded update")),
                   "the replicas are made equal otherwise",
                   std::ranges::find_if(steps, is_unreduced)->step};
  if (!are_sums(run, [](const auto& step) { return reduction_scale(step, kRounding); })) return {};
  return Reading{fmt::format("the gradient is {}, in all recorded updates", times_the_mean(run)),
                 "each loss is divided by the number of ranks", steps.front().step};
}

Maybe clipped_twice(const Run& run) {
  for (const auto& update : cut_at_updates(*run.ranks.front())) {
    const trace::Clip* last = nullptr;
    for (const auto& at : update.all<trace::Clip>()) {
      if (last && last->norm > last->max_norm && are_close(at.event->norm, last->max_norm, 1e-3))
        return Reading{fmt::format("the gradient is clipped to {} and then to {}",
                                   number(last->max_norm), number(at.event->max_norm)),
                       "both limits are meant to hold", at.step};
      last = at.event;
    }
  }
  return {};
}

Maybe clipped_sum(const Run& run) {
  if (run.kinds.count(trace::Clip::kName) == 0) return {};
  if (auto twice = clipped_twice(run)) return twice;
  const auto clips = by_step<trace::Clip>(run);
  const auto scale = [&](const GradientStep& step) {
    return clips.count(step.step) > 0 ? unclipped_scale(run, step) : std::nullopt;
  };
  if (!are_sums(run, scale)) return {};
  return Reading{
      fmt::format("clipping sees {} gradients, in all recorded updates", times_the_mean(run)),
      "the norm is made for a sum", gradient_steps(run).front().step};
}

Maybe added_again(const Run& run) {
  for (const auto& [step, told] : by_step<trace::LossAgain>(run))
    return Reading{fmt::format("a backward starts from a loss that contains the one of {} of the "
                               "same update: that one's gradient is added once more",
                               plural(told.front()->earlier, "earlier backward")),
                   "it is meant to weigh more", step};
  return {};
}

// The steps' first inputs are given once more, one after another.
Maybe same_rows_again(const Run& run) {
  constexpr std::size_t kFewest = 8;
  const auto rows = run.ranks.front()->latest<trace::Rows>();
  const auto is_as = [&](std::size_t i, std::size_t j) {
    return rows[i].event->hashes == rows[j].event->hashes;
  };
  if (rows.size() < kFewest || is_as(0, 1)) return {};  // of one batch in all steps nothing follows
  std::size_t length = 2;
  while (length < rows.size() && !is_as(0, length)) ++length;
  if (2 * length > rows.size()) return {};
  for (std::size_t i = length; i < rows.size(); ++i)
    if (!is_as(i, i - length)) return {};
  return Reading{fmt::format("the model is given the same {} in the same order again",
                             plural(static_cast<std::int64_t>(length), "batch")),
                 "the order is meant to stay", rows[length].step};
}

// A shuffled pass has the order of an earlier one, as where a sampler that counts passes itself begins anew.
Maybe same_order_again(const Run& run) {
  std::map<std::vector<std::int64_t>, std::size_t> orders;
  const auto& passes = finished_passes(run, "train");
  const auto& rank = *run.ranks.front();
  const auto lies_between = [](const auto& told, std::int64_t from, std::int64_t to, auto wanted) {
    return std::ranges::any_of(
        told, [&](const auto& at) { return at.step > from && at.step <= to && wanted(*at.event); });
  };
  // With another model, as in cross-validation, that does not go on from a checkpoint.
  const auto begins_anew = [&](std::int64_t from, std::int64_t to) {
    return lies_between(rank.all<trace::Model>(), from, to, [](const auto&) { return true; }) &&
           !lies_between(rank.all<trace::CheckpointFile>(), from, to,
                         [](const auto& file) { return file.action == "load" && file.accepted; });
  };
  for (std::size_t k = 0; k < passes.size(); ++k) {
    auto order = passes[k].ranks.front().order();
    if (passes[k].by_content || std::ranges::is_sorted(order)) continue;
    const auto [known, is_new] = orders.try_emplace(std::move(order), k);
    if (is_new || begins_anew(passes[known->second].step(), passes[k].step()) ||
        !is_same_order(passes[known->second], passes[k]))
      continue;
    return Reading{fmt::format("pass {} draws the same samples in the same order as pass {}", k,
                               known->second),
                   "it is meant to be gone through again", passes[k].step()};
  }
  return {};
}

Maybe evaluated_in_training_mode(const Run& run) {
  std::int64_t first = -1;
  for (const auto& pass : cut_at_passes(*run.ranks.front(), "evaluation"))
    for (const auto& event : pass.events()) {
      const auto* batch = event.as<trace::Samples>();
      if (event.is<trace::Update>() || (batch && batch->phase == "train")) break;  // it was left
      const auto* forward = event.as<trace::Forward>();
      if (forward && !forward->training) return {};
      if (forward && first < 0) first = event.step;
    }
  if (first < 0) return {};
  return Reading{"all forwards of evaluations are in training mode",
                 "dropout and statistics are meant to move there", first};
}

Maybe calls_another_in_training_mode(const Run& run) {
  for (const auto& [step, told] : by_step<trace::OutsideInTraining>(run))
    return Reading{
        told.front()->holder +
            ", which no optimizer trains, is called in training mode: its layers draw, or "
            "go by the batch's statistics",
        "that is meant, as of a teacher that is an average of the model", step};
  return {};
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
std::vector<std::int64_t> seeds_of_workers(const trace::ParticipantTrace& rank) {
  std::vector<std::int64_t> seeds;
  for (const auto& at : rank.latest<trace::Workers>()) seeds.push_back(at.event->base_seed);
  return seeds;
}

Maybe same_seeds_of_workers(const Run& run) {
  const auto first = seeds_of_workers(*run.ranks.front());
  const auto is_same = [&](const auto* rank) { return seeds_of_workers(*rank) == first; };
  if (run.ranks.size() < 2 || first.size() < 2 || !std::ranges::all_of(run.ranks, is_same) ||
      !samples_vary(run))
    return {};
  return Reading{
      "the loaders' workers begin each pass with the same seeds on all ranks, and "
      "samples are not the same each time",
      "what is drawn goes by the sample or the rank"};
}

// Each rank evaluates all of them, once.
bool is_whole_on_each_rank(const Pass& pass) {
  const auto all = draws(pass.ranks.front());
  return std::ranges::all_of(pass.ranks, [&](const RankPass& rank) {
    const auto own = draws(rank);
    return own.again() == 0 && own == all;
  });
}

Maybe drawn_twice(const Run& run) {
  for (const auto& pass : finished_passes(run, "evaluation"))
    if (pass.drawn.again() > 0 && !is_whole_on_each_rank(pass))
      return Reading{fmt::format("an evaluation drew {}, of which {} are different",
                                 plural(pass.drawn.total, "sample"), pass.drawn.different),
                     "what its figures are of leaves the others out", pass.step()};
  return {};
}

Maybe evaluated_what_was_trained(const Run& run) {
  const auto told = evaluated(run);
  if (!told) return {};
  const auto enough = std::max<std::int64_t>(4, told->samples / 20);
  if (told->trained < enough || told->never < enough) return {};
  return Reading{fmt::format("of {} different samples that evaluations were given, {} had been "
                             "trained on, and {} never are",
                             told->samples, told->trained, told->never),
                 "the figures are meant to be of both", told->step};
}

Maybe a_step_for_each_rank(const Run& run) {
  const auto course = course_of(*run.ranks.front());
  if (run.world_size < 2 || course.length > 0 || course.updates() < 8 ||
      course.pace() != run.world_size)
    return {};
  return Reading{fmt::format("the schedule takes {} steps for every update, one for each rank",
                             run.world_size),
                 "it counts the batches of all ranks", 0};
}

// They moved with each step of the schedule, and since some update do so no more, though it goes on before its end.
Maybe rates_stay(const Run& run) {
  constexpr std::int64_t kFewest = 3;  // steps that moved the rates, and that did not
  const auto course = course_of(*run.ranks.front());
  if (course.length == 0) return {};
  std::int64_t moved = 0, stayed = 0, last = 0;
  for (std::int64_t i = 1; i < course.updates(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (course.positions[at] == course.positions[at - 1]) continue;
    if (course.positions[at] > course.length) return {};
    if (course.rates[at] == course.rates[at - 1]) {
      ++stayed;
    } else {
      if (stayed > 0) return {};
      ++moved, last = i;
    }
  }
  if (moved < kFewest || stayed < kFewest) return {};
  return Reading{fmt::format("the rate stays at {}, though the schedule takes {}: it may move an "
                             "optimizer that no longer trains",
                             number(course.rates.back()), plural(stayed, "more step")),
                 "the schedule is level from here on", last + 1};
}

// No pass comes to its end: each is left behind equally many batches, before the ranks have drawn the whole data set.
Maybe passes_left_early(const Run& run) {
  const auto size = global_size(run, "train");
  const auto passes = cut_at_passes(*run.ranks.front(), "train");
  if (size == 0 || passes.size() < 2) return {};
  std::set<std::size_t> batches;
  std::int64_t drawn = 0, largest = 0;
  for (const auto* rank : run.ranks)
    for (const auto& pass : cut_at_passes(*rank, "train")) {
      if (pass.ended) return {};
      const auto of_pass = pass.batches();
      batches.insert(of_pass.size());
      for (const auto& at : of_pass) {
        const auto ids = static_cast<std::int64_t>(at.event->ids.size());
        largest = std::max(largest, ids);
        if (pass.step == passes.front().step) drawn += ids;
      }
    }
  if (batches.size() != 1 || drawn + largest * run.world_size >= size) return {};
  return Reading{
      fmt::format("each pass is left after {} a rank: {} samples are drawn",
                  plural(static_cast<std::int64_t>(*batches.begin()), "batch"), of(drawn, size)),
      "a pass is meant to be shorter than the data set", passes[1].step};
}

// Of one equation the first that shows something.
constexpr std::pair<Equation, Maybe (*)(const Run&)> kReadings[] = {
    {Equation::own_samples, passes_left_early},
    {Equation::new_order, same_order_again},
    {Equation::new_order, same_rows_again},
    {Equation::modes, evaluated_in_training_mode},
    {Equation::modes, calls_another_in_training_mode},
    {Equation::random_numbers, same_seeds_of_workers},
    {Equation::random_numbers, drawn_from_one_state},
    {Equation::random_numbers, drawn_again},
    {Equation::random_numbers, given_alike},
    {Equation::loss_weights, unequal_weights},
    {Equation::loss_weights, added_again},
    {Equation::mean_gradient, own_gradients},
    {Equation::clipped_once, clipped_sum},
    {Equation::rates, a_step_for_each_rank},
    {Equation::rates, rates_stay},
    {Equation::buffers, moved_alone},
    {Equation::joined_figures, drawn_twice},
    {Equation::joined_figures, evaluated_what_was_trained},
};

}  // namespace

std::optional<Reading> reading_of(const Run& run, Equation equation) {
  if (run.devices || run.ranks.empty()) return {};
  for (const auto& [of, look] : kReadings) {
    if (of != equation) continue;
    auto reading = look(run);
    if (!reading) continue;
    if (reading->ranks.empty()) reading->ranks = run.numbers;
    return reading;
  }
  return {};
}

}  // namespace lockstep::diagnose
