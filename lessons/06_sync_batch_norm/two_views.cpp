// Lesson 06, part "two-views": every image is shown twice, as it is and mirrored, and one backward
// follows.
//
// Concept:  DDP copies rank 0's buffers into every rank's, in place, when a forward begins. What a
//           forward has saved for its backward must not change before that.
// Symptom:  forward, forward, backward: the second forward's broadcast overwrites what the first
//           one's BatchNorm has saved. Autograd raises "modified by an inplace operation".
#include <lockstep/lesson/figures.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 6;

at::Tensor mirrored(const at::Tensor& images) {
  return images.reshape({-1, 28, 28}).flip(2).reshape({-1, 784});
}

// A near miss: after a forward inside NoSync the next one copies no buffers.
at::Tensor first_view_in_no_sync(DistributedDataParallel<torch::nn::Sequential>& model,
                                 const at::Tensor& images) {
  at::Tensor first;
  {
    const NoSync no_sync(model.engine());
    first = model(images);
  }
  return at::cat({first, model(mirrored(images))});
}

void train(RankContext& context, const Fault& fault) {
  context.intent({.global_batch = 2 * kBatch * context.world_size(), .loss_reduction = "mean"});
  const auto data =
      fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * context.world_size());
  auto net = batch_norm_mlp();
  net->to(context.device());
  DistributedDataParallel<torch::nn::Sequential> model(net, context.group());
  SGD optimizer(net->parameters(), 0.05);

  for (int step = 0; step < kSteps; ++step) {
    const auto batch = take(data, own_batch(context, step, kBatch));
    const auto images = batch.inputs.to(context.device());
    const auto targets = batch.targets.to(context.device());
    optimizer.zero_grad();

    at::Tensor outputs;
    if (fault("buffer-sync-inside-backward")) {
      const auto first = model(images);
      outputs = at::cat({first, model(mirrored(images))});  // Broadcasts into what `first` needs.
    } else if (fault("near-miss-first-view-in-no-sync")) {
      outputs = first_view_in_no_sync(model, images);
    } else {
      outputs = model(at::cat({images, mirrored(images)}));  // One forward, one copy.
    }
    const auto loss = cross_entropy(outputs, at::cat({targets, targets})).mean();
    loss.backward();
    optimizer.step();
  }
}

// It counts the steps that end.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void update_ended(torch::optim::Optimizer& optimizer) override {
    Notes::update_ended(optimizer);
    add_figure(context(), "steps", ++steps_);
  }

 private:
  int steps_ = 0;
};

Measured steps_done(const Outcomes& outcomes) {
  double fewest = kSteps;
  for (const auto& outcome : outcomes) {
    const auto found = outcome.figures.find("steps");
    fewest = std::min(fewest, found == outcome.figures.end() ? 0.0 : found->second.back());
  }
  return {.expected = kSteps, .observed = fewest, .tolerance = 0};
}

}  // namespace

lockstep::Part two_views_part() {
  return {
      .name = "two-views",
      .run = train,
      .broken = {{.slug = "buffer-sync-inside-backward",
                  .what = "a second forward, with its broadcast, before the first one's backward",
                  .oracle = {"steps done by the slowest rank", steps_done},
                  .crashes = true}},
      .near_misses = {{.name = "near-miss-first-view-in-no-sync",
                       .slug = "buffer-sync-inside-backward",
                       .naive_check = "the wrapper runs forward twice before one backward"}},
      .notes = notes<OwnNotes>};
}
