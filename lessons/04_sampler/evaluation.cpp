// Lesson 04, part "evaluation": every test sample counts once.
//
// Concept:  a training sampler pads, so that all ranks take equally many steps: when W does not
//           divide N, it deals some samples twice. In training that hardly matters; in a test score
//           it is wrong.
// Symptom:  the score is over ceil(N/W) W samples, and those at the head of the set count twice.
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kTestSamples = 1'009;  // a prime: no world size from 2 to 16 divides it
constexpr std::int64_t kBatch = 64;

// Which of the sampler's places hold a repeated sample: place i of this rank is place rank + i W of
// all.
bool is_padding(const RankContext& context, std::int64_t i) {
  return context.rank() + i * context.world_size() >= kTestSamples;
}

void evaluate(RankContext& context, const Fault& fault, Mlp& model, std::int64_t epoch) {
  const torch::NoGradGuard no_grad;
  const auto test = fashion_mnist_or_synthetic(Split::test, kTestSamples);
  auto& probes = context.probes();
  if (epoch == 0)
    probes.dataset("evaluation", test.inputs, test.targets, all_ids(kTestSamples), kTestSamples);
  const DistributedSampler sampler({.dataset_size = kTestSamples,
                                    .num_replicas = context.world_size(),
                                    .rank = context.rank(),
                                    .shuffle = false});
  // A near miss keeps the padded sampler, and drops the repeats when it counts.
  const bool drop_when_counting = fault("near-miss-dropped-when-counted");
  auto mine = sampler.indices();
  if (fault("evaluation-padding")) {  // PITFALL evaluation-padding
    // Nothing: the training sampler, as it is.
  } else if (!drop_when_counting && is_padding(context, sampler.size() - 1)) {
    mine.pop_back();
  }
  model->eval();
  probes.pass_begin("evaluation", epoch);
  at::Tensor totals =
      at::zeros({2}, at::TensorOptions(at::kDouble).device(context.device()));  // hits, samples
  std::int64_t batches = 0;
  for (std::size_t begin = 0; begin < mine.size(); begin += kBatch, ++batches) {
    const std::vector<std::int64_t> ids(mine.begin() + begin,
                                        mine.begin() + std::min(begin + kBatch, mine.size()));
    probes.samples("evaluation", ids);
    const auto batch = take(test, ids);
    auto hits = model->forward(batch.inputs.to(context.device())).argmax(1) ==
                batch.targets.to(context.device());
    if (drop_when_counting && begin + kBatch >= mine.size() &&
        is_padding(context, sampler.size() - 1))
      hits = hits.slice(0, 0, -1);
    totals[0] += hits.sum();
    totals[1] += hits.numel();
  }
  all_reduce(*context.group(), totals);
  probes.pass_end("evaluation", epoch, batches);
  const double hits = totals[0].item<double>(), count = totals[1].item<double>();
  probes.metric("accuracy", "evaluation", hits, count);
  context.outcome().accuracy.back() = hits / count;  // the test accuracy speaks for the epoch
  add_figure(context, "counted", count);
  model->train();
}

void train(RankContext& context, const Fault& fault) {
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * 8 * context.world_size());
  context.probes().dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  DistributedSampler sampler({.dataset_size = data.size(),
                              .num_replicas = context.world_size(),
                              .rank = context.rank(),
                              .seed = context.seed()});
  TracedTrainer trainer(context, data);
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);
    context.probes().set_epoch(epoch);
    trainer.begin_epoch(epoch);
    for (const auto& ids : sampler.batches(kBatch)) trainer.step(ids);
    trainer.end_epoch();
    evaluate(context, fault, trainer.module(), epoch);
  }
}

Measured samples_counted(const Outcomes& outcomes) {
  return {.expected = kTestSamples, .observed = largest(outcomes, "counted"), .tolerance = 0};
}

}  // namespace

lockstep::Part evaluation_part() {
  return {.name = "evaluation",
          .run = train,
          .broken = {{.slug = "evaluation-padding",
                      .what = "the padded training sampler deals out the test set",
                      .oracle = {"test samples counted", samples_counted}}},
          .near_misses = {{.name = "near-miss-dropped-when-counted",
                           .slug = "evaluation-padding",
                           .naive_check = "some test ids are drawn by two ranks"}}};
}
