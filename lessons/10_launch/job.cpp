// What a launched job is for, in the parts where that does not matter.
#include <lockstep/lesson/training.h>

#include "parts.h"

using namespace lockstep;

void train_a_little(RankContext& context) {
  constexpr std::int64_t kBatch = 16;  // per rank
  const auto data = fashion_mnist_or_synthetic(Split::train, 2 * kBatch * context.world_size());
  TracedTrainer trainer(context, data);
  trainer.begin_epoch(0);
  for (std::int64_t step = 0; step < 2; ++step) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < kBatch; ++i)
      ids.push_back((step * context.world_size() + context.rank()) * kBatch + i);
    trainer.step(ids);
  }
  trainer.end_epoch();
  add_figure(context, "trained", 1);
}

Measured ranks_that_trained(const Outcomes& outcomes) {
  double trained = 0;
  for (const auto& outcome : outcomes)
    if (const auto found = outcome.figures.find("trained"); found != outcome.figures.end())
      trained += static_cast<double>(found->second.size());
  return {.expected = static_cast<double>(outcomes.size()), .observed = trained};
}
