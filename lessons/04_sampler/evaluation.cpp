// Lesson 04, part "evaluation": every test sample counts once.
//
// Concept:  a training sampler pads, so that all ranks take equally many steps: when W does not
//           divide N, it deals some samples twice. In training that hardly matters; in a test score
//           it is wrong.
// Symptom:  the score is over ceil(N/W) W samples, and those at the head of the set count twice.
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>

#include <algorithm>

namespace {

using namespace lockstep;

constexpr std::int64_t kTestSamples = 1'009;  // a prime: no world size from 2 to 16 divides it
constexpr std::int64_t kBatch = 64;

struct Score {
  double hits = 0, count = 0;  // of all ranks
  double accuracy() const { return hits / count; }
};

// Whether this rank's last sample is a repeated one: its place i is place rank + i W of all.
bool ends_with_repeat(const RankContext& context, const DistributedSampler& sampler) {
  return context.rank() + (sampler.size() - 1) * context.world_size() >= kTestSamples;
}

std::vector<std::vector<std::int64_t>> in_batches(const std::vector<std::int64_t>& ids) {
  std::vector<std::vector<std::int64_t>> batches;
  for (std::size_t begin = 0; begin < ids.size(); begin += kBatch)
    batches.emplace_back(ids.begin() + begin, ids.begin() + std::min(begin + kBatch, ids.size()));
  return batches;
}

Score evaluate(RankContext& context, const Fault& fault, Mlp& model, std::int64_t epoch) {
  const torch::NoGradGuard no_grad;
  const auto test = fashion_mnist_or_synthetic(Split::test, kTestSamples);
  const DistributedSampler sampler({.dataset_size = kTestSamples,
                                    .num_replicas = context.world_size(),
                                    .rank = context.rank(),
                                    .shuffle = false});
  auto mine = sampler.indices();
  if (fault("evaluation-padding")) {
    // Nothing: the training sampler, as it is.
  } else if (fault("near-miss-dropped-when-counted")) {
    // A near miss: the repeat is dropped below, when it is counted.
  } else {
    if (ends_with_repeat(context, sampler)) mine.pop_back();
  }
  const auto batches = in_batches(mine);
  tell_pass(epoch, kTestSamples, batches);

  model->eval();
  const auto device = context.device();
  // Hits, and samples.
  at::Tensor totals = at::zeros({2}, at::TensorOptions(at::kDouble).device(device));
  for (const auto& ids : batches) {
    const auto batch = take(test, ids);
    auto hits = model->forward(batch.inputs.to(device)).argmax(1) == batch.targets.to(device);
    if (fault("near-miss-dropped-when-counted") && ids == batches.back() &&
        ends_with_repeat(context, sampler))
      hits = hits.slice(0, 0, -1);
    totals[0] += hits.sum();
    totals[1] += hits.numel();
  }
  model->train();
  all_reduce(*context.group(), totals);
  const Score score{totals[0].item<double>(), totals[1].item<double>()};
  context.metric("accuracy", "evaluation", score.hits, score.count);
  return score;
}

std::vector<Score> train(RankContext& context, const Fault& fault) {
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * 8 * context.world_size());
  DistributedSampler sampler({.dataset_size = data.size(),
                              .num_replicas = context.world_size(),
                              .rank = context.rank(),
                              .seed = context.seed()});
  Trainer trainer(context, data);
  std::vector<Score> scores;
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);
    for (const auto& ids : sampler.batches(kBatch)) trainer.step(ids);
    scores.push_back(evaluate(context, fault, trainer.module(), epoch));
  }
  return scores;
}

// The scores are what the oracle judges; the test accuracy speaks for the epoch.
void train_and_note(RankContext& context, const Fault& fault) {
  const auto scores = train(context, fault);
  context.outcome().accuracy.clear();
  for (const auto& score : scores) {
    context.outcome().accuracy.push_back(score.accuracy());
    add_figure(context, "counted", score.count);
  }
}

Measured samples_counted(const Outcomes& outcomes) {
  return {.expected = kTestSamples, .observed = largest(outcomes, "counted"), .tolerance = 0};
}

}  // namespace

lockstep::Part evaluation_part() {
  return {.name = "evaluation",
          .run = train_and_note,
          .broken = {{.slug = "evaluation-padding",
                      .what = "the padded training sampler deals out the test set",
                      .oracle = {"test samples counted", samples_counted}}},
          .near_misses = {{.name = "near-miss-dropped-when-counted",
                           .slug = "evaluation-padding",
                           .naive_check = "some test ids are drawn by two ranks"}}};
}
