// Lesson 07, part "state": what a file must hold for a run to go on as if nothing had happened.
//
// Concept:  a run is its weights, its optimizer's moments, its schedule's position, every rank's
//           random generator, and whatever else it keeps, such as averaged weights. Save it all,
//           and the run here goes on as the unbroken one, bit for bit.
// Symptom:  nothing fails. The loss can jump after each restart, and the run ends with other
//           weights; the averaged weights differ between the ranks.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/reference.h>

#include "run.h"

namespace {

using namespace checkpoint_lesson;

// weights <- 0.9 weights + 0.1 model, after each epoch. All ranks have the same model, and so the
// same average.
void update_average(RankContext& context, Run& run, const Fault& fault) {
  const torch::NoGradGuard no_grad;
  if (run.average.is_empty()) return;
  if (fault("ema-on-one-rank") && context.rank() != 0) return;
  const auto from = run.model->parameters();
  auto to = run.average->parameters();
  for (std::size_t i = 0; i < to.size(); ++i) to[i].mul_(0.9).add_(from[i], 0.1);
}

Value::Dict to_save(RankContext& context, Run& run, const Fault& fault) {
  Value::Dict checkpoint{{"model", state_dict(*run.model)}};
  if (!run.average.is_empty()) checkpoint["average"] = state_dict(*run.average);
  if (fault("optimizer-state-missing")) {
    // Nothing: the model is the weights, is it not?
  } else {
    checkpoint["optimizer"] = state_dict(run.optimizer);
  }
  if (fault("scheduler-or-rng-state-missing")) {
    // Nothing: the learning rate and the random numbers begin anew.
  } else {
    if (!fault("near-miss-schedule-counted-again"))
      checkpoint["scheduler"] = run.scheduler.state_dict();
    checkpoint["rng_state"] = all_rng_states(context);
  }
  return checkpoint;
}

// Each part that the file has. A newly made schedule can set the rate, so the optimizer comes after
// it.
void restore(RankContext& context, Run& run, const Value& saved, const Fault& fault) {
  const auto& parts = saved.as_dict();
  load_state_dict(*run.model, saved.at("model"));
  if (!run.average.is_empty()) load_state_dict(*run.average, saved.at("average"));
  if (parts.contains("scheduler")) run.scheduler.load_state_dict(saved.at("scheduler"));
  // A near miss: the schedule is not in the file, and is brought there by counting.
  if (fault("near-miss-schedule-counted-again"))
    for (std::int64_t i = 0; i < kBatchesAnEpoch; ++i) run.scheduler.step();
  if (parts.contains("optimizer")) load_state_dict(run.optimizer, saved.at("optimizer"));
  if (parts.contains("rng_state")) restore_rng(context, saved.at("rng_state"));
}

void begin_average(RankContext& context, Run& run, const Fault& fault) {
  // A near miss: only rank 0 keeps an average, and nobody asks another rank for it.
  if (fault("near-miss-average-is-rank-zeros") && context.rank() != 0) return;
  run.average = Mlp(std::dynamic_pointer_cast<MlpImpl>(run.model->clone()));
}

// The near miss writes the optimizer to a file of its own.
void save(RankContext& context, Run& run, const Fault& fault) {
  auto checkpoint = to_save(context, run, fault);
  save_on_rank_zero(*context.group(), [&] {
    if (fault("near-miss-optimizer-in-its-own-file")) {
      save_checkpoint(context.folder() / "optimizer.pt", checkpoint.at("optimizer"));
      checkpoint["optimizer"] = Value();
    }
    save_checkpoint(context.folder() / "checkpoint.pt", checkpoint);
  });
  context.training_state("saved", run.parts());
  if (!run.average.is_empty())
    add_figure(context, "average", flat_parameters(*run.average).norm().item<double>());
}

Value load(const RankContext& context, const Fault& fault) {
  const LoadOptions here{.map_location = context.device()};
  auto value = load_checkpoint(context.folder() / "checkpoint.pt", here).value;
  if (fault("near-miss-optimizer-in-its-own-file"))
    value.as_dict()["optimizer"] = load_checkpoint(context.folder() / "optimizer.pt", here).value;
  return value;
}

void train(RankContext& context, const Fault& fault) {
  const auto data = training_data(context);
  auto sampler = sampler_of(context, data);
  {
    Run run(context, data);
    begin_average(context, run, fault);
    run.epoch(sampler, 0);
    update_average(context, run, fault);
    save(context, run, fault);
    run.epoch(sampler, 1);
  }
  Run run(context, data);  // the job was killed in epoch 2, and starts again
  begin_average(context, run, fault);
  restore(context, run, load(context, fault), fault);
  context.training_state("resumed", run.parts());
  run.epoch(sampler, 1);
}

// Beside it: the weights that the job had come to when it was killed, and how far from them it is
// when it has trained the same again.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void optimizer_made(torch::optim::Optimizer& optimizer) override {
    if (made_++ > 0) unbroken_ = flat_parameters(parameters());  // the former one's
    Notes::optimizer_made(optimizer);
  }
  void finish() override {
    Notes::finish();
    if (unbroken_.defined())
      add_figure(context(), "distance",
                 relative_distance(flat_parameters(parameters()), unbroken_));
  }

 private:
  int made_ = 0;
  at::Tensor unbroken_;
};

Measured distance_to_unbroken(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "distance"), .tolerance = 1e-6};
}
Measured difference_of_averages(const Outcomes& outcomes) {
  return {.expected = 0, .observed = spread(outcomes, "average"), .tolerance = 1e-9};
}

}  // namespace

lockstep::Part state_part() {
  const lockstep::Oracle distance{"distance to the unbroken run's weights (relative)",
                                  distance_to_unbroken};
  return {
      .name = "state",
      .run = train,
      .broken = {{.slug = "optimizer-state-missing",
                  .what = "the file holds the model only, not the optimizer's moments",
                  .oracle = distance,
                  .min_world_size = 1},
                 {.slug = "scheduler-or-rng-state-missing",
                  .what = "the schedule and the random generators begin anew",
                  .oracle = distance,
                  .min_world_size = 1},
                 {.slug = "ema-on-one-rank",
                  .what = "only rank 0 updates the averaged weights that all ranks hold",
                  .oracle = {"the averages' norms, from the least to the greatest over the ranks",
                             difference_of_averages}}},
      .near_misses = {{.name = "near-miss-optimizer-in-its-own-file",
                       .slug = "optimizer-state-missing",
                       .naive_check = "the model's file holds no optimizer"},
                      {.name = "near-miss-schedule-counted-again",
                       .slug = "scheduler-or-rng-state-missing",
                       .naive_check = "the file holds no schedule"},
                      {.name = "near-miss-average-is-rank-zeros",
                       .slug = "ema-on-one-rank",
                       .naive_check = "only rank 0 updates averaged weights"}},
      .notes = notes<OwnNotes>};
}
