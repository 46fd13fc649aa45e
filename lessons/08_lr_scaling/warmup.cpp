// Lesson 08, part "warmup": the scaled rate can be too long a step at the start.
//
// Concept:  a step that is right where the loss is flat can be too long where it is steep. The
//           initial weights are made 8 times as large here, to start where it is steep; with the
//           usual ones the loss does not rise. A warm-up takes short steps until the loss has
//           fallen.
// Symptom:  the loss first jumps, to several times the first one, and then falls.
#include <lockstep/base/error.h>
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/watched.h>

#include <algorithm>
#include <limits>

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr std::int64_t kUpdates = 40;
constexpr std::int64_t kWarmup = 20;
constexpr double kScaledRate = 0.8;    // W times the reference rate, for any W
constexpr double kInitialWeights = 8;  // times PyTorch's

Mlp steep_model() {
  const torch::NoGradGuard no_grad;
  Mlp model(784, 128, 10);
  for (auto& parameter : model->parameters()) parameter *= kInitialWeights;
  return model;
}

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  context.intent({.reference_lr = kScaledRate / world_size, .reference_world_size = 1});
  // The same batch at every update, so that only the steps can make the loss rise.
  std::string which;
  auto data = fashion_mnist_or_synthetic(Split::train, kBatch * world_size, &which);
  if (which != "Fashion-MNIST")
    throw UnavailableError(
        "needs Fashion-MNIST: made-up data are as wide in every direction, and their "
        "loss is not steep");
  data.inputs = (data.inputs - data.inputs.mean()) / (3 * data.inputs.std());
  const auto mine = share_of(context.rank(), world_size, all_ids(data.size()));

  auto module = steep_model();
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());
  SGD optimizer(model.parameters(), kScaledRate);
  double start_factor = fault("no-warmup") ? 1 : 0.1;
  // A near miss has no warm-up either: it bounds the step by clipping the gradient.
  if (fault("near-miss-clipped")) start_factor = 1;
  LinearLR schedule(optimizer, {.start_factor = start_factor, .total_iters = kWarmup});

  for (std::int64_t update = 0; update < kUpdates; ++update) {
    const auto batch = take(data, mine);
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    cross_entropy(outputs, batch.targets.to(context.device())).mean().backward();
    if (fault("near-miss-clipped")) clip_grad_norm_(model.parameters(), 1);
    optimizer.step();
    schedule.step();
  }
}

// Writes down every update's loss.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void loss(const at::Tensor& per_sample, const at::Tensor& outputs,
            const at::Tensor& targets) override {
    Notes::loss(per_sample, outputs, targets);
    add_figure(context(), "loss", per_sample.mean().item<double>());
  }
};

// The largest loss of the first updates over the very first; the mean of all ranks.
Measured rise(const Outcomes& outcomes) {
  constexpr std::size_t kLooked = 10;
  Measured result{
      .expected = 1, .observed = std::numeric_limits<double>::quiet_NaN(), .tolerance = 0.15};
  std::vector<double> sums(kLooked, 0.0);
  for (const auto& outcome : outcomes) {
    const auto found = outcome.figures.find("loss");
    if (found == outcome.figures.end() || found->second.size() < kLooked) return result;
    for (std::size_t i = 0; i < kLooked; ++i) sums[i] += found->second[i];
  }
  result.observed = *std::max_element(sums.begin(), sums.end()) / sums.front();
  return result;
}

}  // namespace

lockstep::Part warmup_part() {
  return {.name = "warmup",
          .run = train,
          .broken = {{.slug = "no-warmup",
                      .what = "W times the rate from the first update on",
                      .oracle = {"largest loss of the first updates over the very first", rise}}},
          .near_misses = {{.name = "near-miss-clipped",
                           .slug = "no-warmup",
                           .naive_check = "the scaled rate is there from the first update on"}},
          .notes = notes<OwnNotes>};
}
