// What a launched job is for, in the parts where that does not matter.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>

#include "parts.h"

using namespace lockstep;

void tell_place(RankContext& context, const trace::Placement& place) {
  context.told().tell(place);
}

std::vector<std::vector<std::int64_t>> consecutive_batches(const RankContext& context,
                                                           std::int64_t steps, std::int64_t size) {
  std::vector<std::vector<std::int64_t>> batches;
  for (std::int64_t step = 0; step < steps; ++step)
    batches.push_back(global_batch(step * context.world_size() + context.rank(), size));
  tell_pass(0, steps * size * context.world_size(), batches);
  return batches;
}

void train_a_little(RankContext& context) {
  constexpr std::int64_t kBatch = 16;  // per rank
  const auto data = fashion_mnist_or_synthetic(Split::train, 2 * kBatch * context.world_size());
  Trainer trainer(context, data);
  for (const auto& ids : consecutive_batches(context, 2, kBatch)) trainer.step(ids);
  add_figure(context, "trained", 1);
}

Measured ranks_that_trained(const Outcomes& outcomes) {
  double trained = 0;
  for (const auto& outcome : outcomes)
    if (const auto found = outcome.figures.find("trained"); found != outcome.figures.end())
      trained += static_cast<double>(found->second.size());
  return {.expected = static_cast<double>(outcomes.size()), .observed = trained};
}
