// Lesson 12, part "dividing": what a microbatch counts, and which one is the last.
//
// Concept:  G backwards add up. For the mean over their samples each loss is divided by G, and the
//           update comes after the G-th: at (i + 1) % G == 0.
// Symptom:  not divided, every gradient is G times too large: with SGD, another learning rate.
//           Updated at i % G == 0, the first gradient is of one microbatch and about G times too
//           small, and the last G - 1 microbatches are in no update.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include <algorithm>
#include <optional>

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;       // per rank and microbatch
constexpr std::int64_t kAccumulated = 4;  // microbatches an update: G
constexpr std::int64_t kMicrobatches = 16;

// A near miss: two microbatches are left over, and make an update of their own.
constexpr std::int64_t kShortEpoch = kMicrobatches - 2;

std::int64_t microbatches_of_update_with(std::int64_t microbatch) {
  return std::min(kAccumulated, kShortEpoch - microbatch / kAccumulated * kAccumulated);
}

// A near miss divides the gradients, once they are all there, and not each loss.
void divide_gradients(Mlp& module) {
  for (auto& parameter : module->parameters()) parameter.mutable_grad() /= kAccumulated;
}

void train(RankContext& context, const Fault& fault) {
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.global_batch = kBatch * kAccumulated * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kMicrobatches * world_size);
  Mlp module(784, 64, 10);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());
  SGD optimizer(model.parameters(), 0.01);

  const auto microbatches = fault("near-miss-short-last-group") ? kShortEpoch : kMicrobatches;
  for (std::int64_t i = 0; i < microbatches; ++i) {
    const auto everyone = global_batch(i, kBatch * world_size);
    const auto batch = take(data, share_of(rank, world_size, everyone));
    const auto done = fault("accumulation-off-by-one") ? i : i + 1;
    bool update_due = done % kAccumulated == 0;
    if (fault("near-miss-short-last-group") && done == microbatches) update_due = true;
    // The ranks reduce in the backward before an update only.
    std::optional<NoSync> no_sync;
    if (!update_due) no_sync.emplace(model.engine());

    const auto outputs = model(batch.inputs.to(context.device()));
    auto loss = cross_entropy(outputs, batch.targets.to(context.device())).mean();
    if (fault("accumulation-not-divided")) {
      // Each microbatch's mean counts in full.
    } else if (fault("near-miss-gradients-divided")) {
      // A near miss: the gradients are divided below.
    } else if (fault("near-miss-short-last-group")) {
      loss = loss / microbatches_of_update_with(i);
    } else {
      loss = loss / kAccumulated;
    }
    loss.backward();
    if (!update_due) continue;

    if (fault("near-miss-gradients-divided")) divide_gradients(module);
    optimizer.step();
    optimizer.zero_grad();
  }
}

// Compares each update's gradient with one process's, and counts the microbatches behind it.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void fetch(const Fetch& fetch) override {
    Notes::fetch(fetch);
    data_ = {fetch.inputs, fetch.targets};
    const auto all_ranks = global_batch(microbatches_++, kBatch * context().world_size());
    everyone_.insert(everyone_.end(), all_ranks.begin(), all_ranks.end());
    ++since_update_;
  }
  void update_begins(torch::optim::Optimizer&) override {
    add_figure(context(), "microbatches", static_cast<double>(since_update_));
    add_figure(context(), "gradient_scale",
               scale_of(flat_gradients(parameters()),
                        gradient_of_batch(model<Mlp>(), rows_of(data_, everyone_))));
    everyone_.clear();
    since_update_ = 0;
  }

 private:
  TensorData data_;
  std::vector<std::int64_t> everyone_;  // all ranks' samples since the last update
  std::int64_t microbatches_ = 0, since_update_ = 0;
};

Measured gradient_scale(const Outcomes& outcomes) {
  return {.expected = 1, .observed = largest(outcomes, "gradient_scale"), .tolerance = 1e-3};
}

Measured first_update(const Outcomes& outcomes) {
  const auto found = outcomes.at(0).figures.find("microbatches");
  return {.expected = kAccumulated,
          .observed = found == outcomes.at(0).figures.end() ? 0 : found->second.front(),
          .tolerance = 0};
}

}  // namespace

lockstep::Part dividing_part() {
  return {.name = "dividing",
          .run = train,
          .broken = {{.slug = "accumulation-not-divided",
                      .what = "each microbatch's mean loss counts in full",
                      .oracle = {"gradient over one process's gradient", gradient_scale},
                      .min_world_size = 1},
                     {.slug = "accumulation-off-by-one",
                      .what = "updates at i % G == 0, so first after one microbatch",
                      .oracle = {"microbatches behind the first update", first_update},
                      .min_world_size = 1}},
          .near_misses = {{.name = "near-miss-gradients-divided",
                           .slug = "accumulation-not-divided",
                           .naive_check = "no loss is divided by the number of microbatches"},
                          {.name = "near-miss-short-last-group",
                           .slug = "accumulation-off-by-one",
                           .naive_check = "an update has fewer microbatches than the others"}},
          .notes = notes<OwnNotes>};
}
