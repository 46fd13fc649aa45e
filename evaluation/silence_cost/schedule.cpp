// Learning rates: scaled with the ranks, warmed up for an epoch, then cosine decay.
#include <lockstep/record/recorder.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/lr_scheduler.h>

#include <cmath>

#include "silence.h"

namespace lockstep::silence {
namespace {

double sgd(const Job& job, const Fault& fault) {
  const int world_size = job.world_size();
  double rate = job.rate / world_size;  // of one rank
  record::intent({.reference_lr = rate, .reference_world_size = 1});
  if (!fault("lr-not-scaled")) rate *= world_size;
  auto net = make_model();
  DistributedDataParallel<Mlp> model(net, job.group);
  SGD optimizer(net->parameters(), rate);

  auto of_epoch = job.updates_of_epoch();
  if (fault("schedule-length-ignores-world-size")) of_epoch *= world_size;
  const auto length = job.epochs * of_epoch;
  const auto warmup = fault("no-warmup") ? 1 : of_epoch;
  SequentialLR schedule(
      optimizer,
      {std::make_shared<LinearLR>(
           optimizer,
           LinearLROptions{.start_factor = fault("no-warmup") ? 1 : 0.1, .total_iters = warmup}),
       std::make_shared<CosineAnnealingLR>(optimizer,
                                           CosineAnnealingLROptions{.T_max = length - warmup})},
      {warmup});

  std::int64_t done = 0;
  for_updates(job.updates(), shuffled(job), [&](const Ids& ids) {
    const auto batch = take(job.train, ids);
    net->zero_grad();
    mean_loss(model(batch.inputs), batch.targets).backward();
    optimizer.step();
    ++done;
    std::int64_t steps = 1;
    if (fault("scheduler-stepped-per-rank")) steps = world_size;
    if (fault("schedule-unit-mismatch")) steps = done % job.updates_of_epoch() == 0;
    for (; steps > 0; --steps) schedule.step();
  });
  return accuracy(net, job.test);
}

double adam(const Job& job, const Fault& fault) {
  const double ranks = job.world_size();
  const double growth = fault("linear-rule-with-adam") ? ranks : std::sqrt(ranks);
  record::intent({.reference_lr = 1e-3, .reference_world_size = 1});
  auto net = make_model();
  DistributedDataParallel<Mlp> model(net, job.group);
  Adam optimizer(net->parameters(), AdamOptions(1e-3 * growth));
  for_updates(job.updates(), shuffled(job), [&](const Ids& ids) {
    const auto batch = take(job.train, ids);
    net->zero_grad();
    mean_loss(model(batch.inputs), batch.targets).backward();
    optimizer.step();
  });
  return accuracy(net, job.test);
}

}  // namespace

std::vector<Setting> schedule_settings() {
  return {{"schedule",
           {"lr-not-scaled", "no-warmup", "scheduler-stepped-per-rank", "schedule-unit-mismatch",
            "schedule-length-ignores-world-size"},
           sgd},
          {"adam", {"linear-rule-with-adam"}, adam}};
}

}  // namespace lockstep::silence
