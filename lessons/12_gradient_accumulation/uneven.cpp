// Lesson 12, part "uneven": microbatches of unequal size, as the end of an epoch, sequences of
// unequal length or filtered samples leave them.
//
// Concept:  the mean over an update's samples is sum(loss) / n with n = all its samples. A mean of
//           the microbatches' means weighs every microbatch alike, so a sample in a small one
//           counts more.
// Symptom:  the loss looks right, and the gradient has another direction.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include <numeric>
#include <optional>

namespace {

using namespace lockstep;

const std::vector<std::int64_t> kSizes{24, 24, 24, 4};  // of an update's microbatches, on each rank
constexpr int kUpdates = 4;

// A rank's samples of one update.
std::int64_t samples_of_update() {
  return std::accumulate(kSizes.begin(), kSizes.end(), std::int64_t{0});
}

void train(RankContext& context, const Fault& fault) {
  const int rank = context.rank(), world_size = context.world_size();
  const auto samples = samples_of_update();
  context.intent({.global_batch = samples * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, samples * kUpdates * world_size);
  Mlp module(784, 64, 10);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());
  SGD optimizer(model.parameters(), 0.01);

  for (int update = 0; update < kUpdates; ++update) {
    optimizer.zero_grad();
    const auto mine = share_of(rank, world_size, global_batch(update, samples * world_size));
    auto next = mine.begin();
    for (const auto size : kSizes) {
      const auto batch = take(data, {next, next + size});
      next += size;
      // The ranks reduce in the update's last backward only.
      std::optional<NoSync> no_sync;
      if (next != mine.end()) no_sync.emplace(model.engine());
      const auto outputs = model(batch.inputs.to(context.device()));
      const auto each = cross_entropy(outputs, batch.targets.to(context.device()));
      auto loss = fault("mean-of-microbatch-means")
                      ? each.mean() / static_cast<double>(kSizes.size())
                      : each.sum() / samples;
      // A near miss takes the mean too, and weighs it with the microbatch's share of the samples.
      if (fault("near-miss-weighted-means"))
        loss = each.mean() * (static_cast<double>(size) / static_cast<double>(samples));
      loss.backward();
    }
    optimizer.step();
  }
}

// Compares each update's gradient with one process's on all ranks' samples.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void fetch(const Fetch& fetch) override {
    Notes::fetch(fetch);
    data_ = {fetch.inputs, fetch.targets};
  }
  void update_begins(torch::optim::Optimizer&) override {
    const auto everyone = global_batch(update_++, samples_of_update() * context().world_size());
    add_figure(context(), "gradient_error",
               relative_distance(flat_gradients(parameters()),
                                 gradient_of_batch(model<Mlp>(), rows_of(data_, everyone))));
  }

 private:
  TensorData data_;
  int update_ = 0;
};

// float32 sums in another order differ by about 1e-6.
Measured gradient_error(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "gradient_error"), .tolerance = 1e-4};
}

}  // namespace

lockstep::Part uneven_part() {
  return {.name = "uneven",
          .run = train,
          .broken = {{.slug = "mean-of-microbatch-means",
                      .what = "the plain mean of the means of unequal microbatches",
                      .oracle = {"gradient, distance from one process's", gradient_error},
                      .min_world_size = 1}},
          .near_misses = {{.name = "near-miss-weighted-means",
                           .slug = "mean-of-microbatch-means",
                           .naive_check = "means of microbatches of unequal size are added up"}},
          .notes = notes<OwnNotes>};
}
