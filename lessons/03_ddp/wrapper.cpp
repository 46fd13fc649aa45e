// Lesson 03, part "wrapper": the same through DistributedDataParallel, with a batch of 64 per
// rank.
//
// Concept:  the wrapper compares and broadcasts the parameters when it is made, and its forward()
//           arms the reduction that backward() then runs, bucket by bucket. It already divides by
//           the world size.
// Symptom:  call the module instead of the wrapper and nothing is armed; divide the loss as well
//           and steps are W times too short.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include <memory>
#include <optional>

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 64;  // per rank
constexpr int kSteps = 8;
constexpr double kLearningRate = 0.01;

void train(RankContext& context, const Fault& fault) {
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);

  std::int64_t hidden = 128;
  if (fault("parameters-differ-across-ranks") && rank == world_size - 1)
    hidden += 1;  // One rank was given another configuration.
  Mlp module(784, hidden, 10);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());
  SGD optimizer(model.parameters(), kLearningRate);

  for (int step = 0; step < kSteps; ++step) {
    const auto everyone = global_batch(step, kBatch * world_size);
    const auto batch = take(data, share_of(rank, world_size, everyone));
    const auto inputs = batch.inputs.to(context.device());
    optimizer.zero_grad();

    const auto outputs =
        fault("forward-bypasses-wrapper") ? module->forward(inputs) : model(inputs);
    const auto each = cross_entropy(outputs, batch.targets.to(context.device()));
    auto loss = each.mean();
    if (fault("double-average")) loss = loss / world_size;
    // A near miss: the sum over the samples, divided by how many there are, is the mean once.
    if (fault("near-miss-sum-over-count")) loss = each.sum() / kBatch;
    loss.backward();
    optimizer.step();
  }
}

// Beside it one process trains on the global batch, from the weights that the wrapper left.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&)
      : Notes(job),
        data_(fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * job.world_size())) {}

  void wrapped(torch::nn::Module& module, const std::string&) override {
    one_process_.emplace(Mlp(std::dynamic_pointer_cast<MlpImpl>(module.clone(at::kCPU))),
                         kLearningRate);
  }
  void update_begins(torch::optim::Optimizer&) override {
    const auto batch = rows_of(data_, global_batch(step_, kBatch * context().world_size()));
    one_process_->backward(batch.inputs, batch.targets);
    if (step_++ == 0)
      add_figure(context(), "gradient_scale",
                 scale_of(flat_gradients(parameters()), flat_gradients(*one_process_->model())));
    one_process_->step();
  }
  void update_ended(torch::optim::Optimizer& optimizer) override {
    Notes::update_ended(optimizer);
    add_figure(
        context(), "distance",
        relative_distance(flat_parameters(parameters()), flat_parameters(*one_process_->model())));
  }
  void finish() override {
    Notes::finish();
    if (one_process_) context().outcome().reference_losses.push_back(one_process_->mean_loss());
  }

 private:
  TensorData data_;
  std::optional<OneProcess<Mlp>> one_process_;
  int step_ = 0;
};

Measured gradient_scale(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "gradient_scale"), .tolerance = 1e-3};
}

Measured final_distance(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "distance"), .tolerance = 1e-4};
}

Measured steps_done(const Outcomes& outcomes) {
  double fewest = kSteps;
  for (const auto& outcome : outcomes) {
    const auto found = outcome.figures.find("distance");
    fewest = std::min(
        fewest, found == outcome.figures.end() ? 0.0 : static_cast<double>(found->second.size()));
  }
  return {.expected = kSteps, .observed = fewest, .tolerance = 0};
}

}  // namespace

lockstep::Part wrapper_part() {
  return {.name = "wrapper",
          .run = train,
          .broken = {{.slug = "forward-bypasses-wrapper",
                      .what = "calls the module's forward, not the wrapper's",
                      .oracle = {"weights, largest distance from one process", final_distance}},
                     {.slug = "double-average",
                      .what = "divides the loss by W though DDP averages",
                      .oracle = {"gradient over one process's gradient", gradient_scale}},
                     {.slug = "parameters-differ-across-ranks",
                      .what = "the last rank has another layer size",
                      .oracle = {"steps done by the slowest rank", steps_done},
                      .crashes = true}},
          .near_misses = {{.name = "near-miss-sum-over-count",
                           .slug = "double-average",
                           .naive_check = "the loss is divided by hand before DDP averages"}},
          .notes = notes<OwnNotes>};
}
