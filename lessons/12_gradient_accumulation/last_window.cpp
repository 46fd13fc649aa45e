// Lesson 12, part "last-window": an epoch whose microbatches fill no whole number of updates.
//
// Concept:  14 microbatches, four an update: two are left at the end. They make an update of their
//           own, divided by two; or they wait in .grad for the next epoch's first two.
// Symptom:  none. The losses of the last microbatches are printed and their backwards cost time,
//           but the next epoch's zero_grad() clears their gradients. With fewer microbatches than
//           an update takes, nothing is trained at all.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include <algorithm>
#include <optional>

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;         // per rank and microbatch
constexpr std::int64_t kAccumulated = 4;    // microbatches an update: G
constexpr std::int64_t kMicrobatches = 14;  // an epoch
constexpr std::int64_t kEpochs = 2;
using Ids = std::vector<std::int64_t>;

// A near miss: nobody draws the last two. The next epoch's order leaves other samples out.
std::vector<Ids> whole_windows(const DistributedSampler& sampler, std::int64_t dataset_size) {
  auto microbatches = sampler.batches(kBatch);
  microbatches.resize(kMicrobatches / kAccumulated * kAccumulated);
  tell_pass(sampler.epoch(), dataset_size, microbatches);
  return microbatches;
}

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  context.intent({.global_batch = kBatch * kAccumulated * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kMicrobatches * world_size);
  Mlp module(784, 64, 10);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());
  SGD optimizer(model.parameters(), 0.01);
  DistributedSampler sampler({.dataset_size = data.size(),
                              .num_replicas = world_size,
                              .rank = context.rank(),
                              .seed = context.seed()});

  std::int64_t in_window = 0;  // microbatches in .grad
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    const auto microbatches = fault("near-miss-tail-not-drawn")
                                  ? whole_windows(sampler, data.size())
                                  : sampler.batches(kBatch);
    auto to_come = static_cast<std::int64_t>(microbatches.size());
    if (fault("near-miss-carried-over")) {
      // A near miss: what is left over stays in .grad, and the next microbatches join it.
    } else {
      optimizer.zero_grad();
      in_window = 0;
    }
    for (const auto& ids : microbatches) {
      const auto batch = take(data, ids);
      ++in_window;
      --to_come;
      // The epoch's last window has fewer microbatches where fewer are left.
      const auto of_window = fault("near-miss-carried-over")
                                 ? kAccumulated
                                 : std::min(kAccumulated, in_window + to_come);
      const auto due_at = fault("last-accumulation-window-lost") ? kAccumulated : of_window;
      const bool update_due = in_window == due_at;
      // The ranks reduce in the backward before an update only.
      std::optional<NoSync> no_sync;
      if (!update_due) no_sync.emplace(model.engine());
      const auto outputs = model(batch.inputs.to(context.device()));
      const auto loss = cross_entropy(outputs, batch.targets.to(context.device())).mean();
      (loss / of_window).backward();
      if (!update_due) continue;

      optimizer.step();
      optimizer.zero_grad();
      in_window = 0;
    }
  }
}

// Counts the samples that were drawn, and those that are in an update's gradient.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void pass_begins(std::int64_t epoch, std::int64_t dataset_size) override {
    Notes::pass_begins(epoch, dataset_size);
    const Unobserved nobody_hears_its_epoch;
    DistributedSampler all_ranks({.dataset_size = dataset_size, .seed = context().seed()});
    all_ranks.set_epoch(epoch);
    order_ = all_ranks.indices();
    next_ = 0;
  }
  void fetch(const Fetch& fetch) override {
    Notes::fetch(fetch);
    data_ = {fetch.inputs, fetch.targets};
    const auto size = kBatch * context().world_size();
    const auto first = order_.begin() + size * next_++;
    waiting_.emplace_back(first, first + size);
    add_figure(context(), "drawn", static_cast<double>(size));
  }
  void update_begins(torch::optim::Optimizer&) override {
    add_figure(context(), "in_an_update", samples_behind(flat_gradients(parameters())));
    waiting_.clear();
  }

 private:
  // How many samples of `waiting_` are in this gradient: it is one process's mean gradient of the
  // last so many microbatches. 0 where it is that of no such number.
  double samples_behind(const at::Tensor& gradient) const {
    Ids samples;
    for (auto microbatch = waiting_.rbegin(); microbatch != waiting_.rend(); ++microbatch) {
      samples.insert(samples.end(), microbatch->begin(), microbatch->end());
      const auto of_samples = gradient_of_batch(model<Mlp>(), rows_of(data_, samples));
      if (relative_distance(gradient, of_samples) < 1e-3)
        return static_cast<double>(samples.size());
    }
    return 0;
  }

  TensorData data_;
  Ids order_;                 // of the epoch, of all ranks together
  std::int64_t next_ = 0;     // microbatch of it
  std::vector<Ids> waiting_;  // microbatches drawn since the last update, of all ranks
};

// Rank 0's figures: each rank computes them for all.
Measured in_no_update(const Outcomes& outcomes) {
  const auto sum = [&](const std::string& figure) {
    const auto found = outcomes.at(0).figures.find(figure);
    double total = 0;
    if (found != outcomes.at(0).figures.end())
      for (const double value : found->second) total += value;
    return total;
  };
  return {.expected = 0, .observed = sum("drawn") - sum("in_an_update"), .tolerance = 0};
}

}  // namespace

lockstep::Part last_window_part() {
  return {
      .name = "last-window",
      .run = train,
      .broken = {{.slug = "last-accumulation-window-lost",
                  .what = "updates only where a window is full; an epoch's last two never fill one",
                  .oracle = {"samples drawn whose gradient is in no update", in_no_update},
                  .min_world_size = 1}},
      .near_misses = {{.name = "near-miss-carried-over",
                       .slug = "last-accumulation-window-lost",
                       .naive_check = "an epoch ends without an update"},
                      {.name = "near-miss-tail-not-drawn",
                       .slug = "last-accumulation-window-lost",
                       .naive_check = "an update comes only where a window is full"}},
      .notes = notes<OwnNotes>};
}
