// Lesson 08, part "schedule": a schedule counts its own steps, not updates, epochs or ranks.
// --full: 10,000 samples, batch 64, 10 epochs.
//
// Concept:  its length must be in the unit it is stepped in, and count what one rank does: the
//           batches of the sharded data. One step() an update, on every rank.
// Symptom:  the rate ends too high, reaches its end too early and rises again, or never leaves the
//           warm-up. The loss alone may not show it.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/watched.h>

#include <algorithm>
#include <limits>

namespace {

using namespace lockstep;

constexpr double kRate = 0.05;

// A warm-up for the first sixth of `length` steps, and then a cosine down to 0.
SequentialLR warmup_and_cosine(torch::optim::Optimizer& optimizer, std::int64_t length) {
  const std::int64_t warmup = length / 6;
  return {optimizer,
          {std::make_shared<LinearLR>(optimizer,
                                      LinearLROptions{.start_factor = 0.1, .total_iters = warmup}),
           std::make_shared<CosineAnnealingLR>(optimizer,
                                               CosineAnnealingLROptions{.T_max = length - warmup})},
          {warmup}};
}

void advance(LRScheduler& schedule, std::int64_t steps) {
  for (std::int64_t i = 0; i < steps; ++i) schedule.step();
}

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const std::int64_t batch_size = context.full() ? 64 : 32;  // per rank
  const std::int64_t epochs = context.full() ? 10 : 3;
  const auto data = fashion_mnist_or_synthetic(
      Split::train, context.full() ? 10'000 : 20 * batch_size * world_size);
  DistributedSampler sampler({.dataset_size = data.size(),
                              .num_replicas = world_size,
                              .rank = context.rank(),
                              .seed = context.seed()});
  Mlp module(784, context.full() ? 256 : 32, 10);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());
  SGD optimizer(model.parameters(), kRate);

  const auto samples = fault("schedule-length-ignores-world-size") ? data.size() : sampler.size();
  std::int64_t updates = (samples + batch_size - 1) / batch_size;  // of an epoch
  // A near miss: counted in samples, of all ranks.
  if (fault("near-miss-counted-in-samples")) updates = data.size();
  // A near miss: W times too long, and stepped W times an update.
  if (fault("near-miss-longer-and-stepped-more")) updates *= world_size;
  auto schedule = warmup_and_cosine(optimizer, epochs * updates);

  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);
    const auto batches = sampler.batches(batch_size);
    for (const auto& ids : batches) {
      const auto batch = take(data, ids);
      optimizer.zero_grad();
      const auto outputs = model(batch.inputs.to(context.device()));
      cross_entropy(outputs, batch.targets.to(context.device())).mean().backward();
      optimizer.step();

      if (fault("schedule-unit-mismatch")) {
        if (&ids == &batches.back()) schedule.step();  // once an epoch, and it counts updates
      } else if (fault("scheduler-stepped-per-rank")) {
        advance(schedule, world_size);  // once for every rank, on every rank
      } else if (fault("near-miss-counted-in-samples")) {
        advance(schedule, batch_size * world_size);
      } else if (fault("near-miss-longer-and-stepped-more")) {
        advance(schedule, world_size);
      } else {
        schedule.step();
      }
    }
  }
}

// Writes down every update's rate.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void update_ended(torch::optim::Optimizer& optimizer) override {
    Notes::update_ended(optimizer);
    add_figure(context(), "rate", optimizer.param_groups().front().options().get_lr() / kRate);
  }
};

// The rate of the last update: a decay that fits the run ends near 0.
Measured last_rate(const Outcomes& outcomes) {
  const auto found = outcomes.at(0).figures.find("rate");
  const bool any = found != outcomes.at(0).figures.end();
  return {.expected = 0,
          .observed = any ? found->second.back() : std::numeric_limits<double>::quiet_NaN(),
          .tolerance = 0.02};
}

// When the rate is down to 5 %, as a share of the run: for a cosine over its last five sixths, from
// 0.88 on.
Measured decayed_at(const Outcomes& outcomes) {
  Measured result{
      .expected = 0.89, .observed = std::numeric_limits<double>::quiet_NaN(), .tolerance = 0.03};
  const auto found = outcomes.at(0).figures.find("rate");
  if (found == outcomes.at(0).figures.end()) return result;
  const auto& rates = found->second;
  const auto low =
      std::find_if(rates.begin(), rates.end(), [](double rate) { return rate <= 0.05; });
  result.observed = static_cast<double>(low - rates.begin()) / static_cast<double>(rates.size());
  return result;
}

}  // namespace

lockstep::Part schedule_part() {
  const lockstep::Oracle last{"rate of the last update over the base rate", last_rate};
  return {.name = "schedule",
          .run = train,
          .broken = {{.slug = "scheduler-stepped-per-rank",
                      .what = "step() W times an update, once for every rank",
                      .oracle = {"share of the run until the rate is down to 5 %", decayed_at}},
                     {.slug = "schedule-unit-mismatch",
                      .what = "a schedule made for updates is stepped once an epoch",
                      .oracle = last,
                      .min_world_size = 1},
                     {.slug = "schedule-length-ignores-world-size",
                      .what = "made for the updates of one rank alone, W times as many",
                      .oracle = last}},
          .near_misses = {{.name = "near-miss-longer-and-stepped-more",
                           .slug = "scheduler-stepped-per-rank",
                           .naive_check = "the schedule is stepped W times an update"},
                          {.name = "near-miss-counted-in-samples",
                           .slug = "schedule-length-ignores-world-size",
                           .naive_check = "the length comes from the data set, not the share"}},
          .notes = notes<OwnNotes>};
}
