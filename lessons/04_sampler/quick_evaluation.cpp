// Lesson 04, part "quick-evaluation": a score that can be compared with the last one.
//
// Concept:  many programs score a few batches between epochs. Such scores can be compared only if
//           the few batches are the same ones each time.
// Symptom:  with shuffle on, the same weights score differently twice in a row, and the best
//           checkpoint may be the one that drew the easiest samples.
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace {

using namespace lockstep;

constexpr std::int64_t kTestSamples = 8'000;  // on 16 ranks too, a look sees a part only
constexpr std::int64_t kBatch = 32;
constexpr std::size_t kBatchesPerLook = 4;

// The mean loss over the first batches that the sampler deals.
double quick_look(RankContext& context, const Fault& fault, Mlp& model, const TensorData& test,
                  std::int64_t look) {
  const torch::NoGradGuard no_grad;
  DistributedSamplerOptions options{.dataset_size = kTestSamples,
                                    .num_replicas = context.world_size(),
                                    .rank = context.rank(),
                                    .seed = context.seed()};
  if (!fault("shuffled-evaluation")) options.shuffle = false;
  DistributedSampler sampler(options);
  sampler.set_epoch(look);
  auto batches = sampler.batches(kBatch);
  batches.resize(std::min(batches.size(), kBatchesPerLook));
  // A near miss: the same batches in another order. The sum is the same up to rounding.
  if (fault("near-miss-reversed-order") && look % 2 == 1)
    std::reverse(batches.begin(), batches.end());
  tell_pass(look, kTestSamples, batches);  // these few, not all that were dealt

  model->eval();
  const auto device = context.device();
  // Loss, and samples.
  at::Tensor totals = at::zeros({2}, at::TensorOptions(at::kDouble).device(device));
  for (const auto& ids : batches) {
    const auto batch = take(test, ids);
    const auto outputs = model->forward(batch.inputs.to(device));
    totals[0] +=
        torch::cross_entropy_loss(outputs, batch.targets.to(device), {}, at::Reduction::Sum);
    totals[1] += static_cast<double>(ids.size());
  }
  model->train();
  all_reduce(*context.group(), totals);
  const double loss = totals[0].item<double>(), samples = totals[1].item<double>();
  context.metric("loss", "evaluation", loss, samples);
  return loss / samples;
}

// Two looks at the same weights.
std::pair<double, double> train(RankContext& context, const Fault& fault) {
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * 8 * context.world_size());
  const auto test = fashion_mnist_or_synthetic(Split::test, kTestSamples);
  const DistributedSampler sampler({.dataset_size = data.size(),
                                    .num_replicas = context.world_size(),
                                    .rank = context.rank(),
                                    .seed = context.seed()});
  Trainer trainer(context, data);
  for (const auto& ids : sampler.batches(kBatch)) trainer.step(ids);
  const double first = quick_look(context, fault, trainer.module(), test, 0);
  const double second = quick_look(context, fault, trainer.module(), test, 1);
  return {first, second};
}

// How far the looks are apart is what the oracle judges.
void train_and_note(RankContext& context, const Fault& fault) {
  const auto [first, second] = train(context, fault);
  add_figure(context, "difference", std::abs(first - second));
}

// The same samples give the same sum, but for the rounding of a few float32 batch sums.
Measured difference(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "difference"), .tolerance = 1e-6};
}

}  // namespace

lockstep::Part quick_evaluation_part() {
  return {.name = "quick-evaluation",
          .run = train_and_note,
          .broken = {{.slug = "shuffled-evaluation",
                      .what = "the evaluation sampler shuffles",
                      .oracle = {"mean loss of the same weights, second look against first",
                                 difference},
                      .min_world_size = 1}},
          .near_misses = {{.name = "near-miss-reversed-order",
                           .slug = "shuffled-evaluation",
                           .naive_check = "the second look draws its samples in another order"}}};
}
