// Lesson 11, part "weights": the ranks' last batches are of unequal size.
//
// Concept:  DDP takes the plain mean of the ranks' gradients. If each is the mean over its own
//           batch, that is the mean over all samples only if the batches are equally large. Else
//           divide the sum of the losses by all ranks' samples: reduce (sum, n), not means.
// Symptom:  no error. A sample in a small batch counts more than one in a large batch, and the
//           gradient has another direction.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include <numeric>

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr int kSteps = 4;

// The ids of a rank's batch in a step. In the last step the higher ranks have fewer and fewer.
std::vector<std::int64_t> batch_of(int step, int rank, int world_size) {
  if (step + 1 < kSteps) return global_batch(step * world_size + rank, kBatch);
  std::int64_t first = step * world_size * kBatch;
  for (int before = 0; before < rank; ++before) first += kBatch / (before + 1);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(kBatch / (rank + 1)));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// A near miss: all batches have the same size.
std::vector<std::int64_t> equal_batch_of(int step, int rank, int world_size) {
  return global_batch(step * world_size + rank, kBatch);
}

double count_of_all(RankContext& context, const at::Tensor& each) {
  auto samples = torch::tensor(each.numel(), at::device(context.device()).dtype(at::kLong));
  all_reduce(*context.group(), samples);
  return samples.item<double>();
}

// A near miss sums, and divides the gradients by the samples once they are reduced.
void backward_of_sum(RankContext& context, Mlp& module, const at::Tensor& each) {
  const double samples = count_of_all(context, each);
  each.sum().backward();
  for (auto& parameter : module->parameters())
    parameter.mutable_grad() *= context.world_size() / samples;
}

void train(RankContext& context, const Fault& fault) {
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  Mlp module(784, 64, 10);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());
  SGD optimizer(model.parameters(), 0.05);

  for (int step = 0; step < kSteps; ++step) {
    const auto ids = fault("near-miss-equal-batches") ? equal_batch_of(step, rank, world_size)
                                                      : batch_of(step, rank, world_size);
    const auto batch = take(data, ids);
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    const auto each = cross_entropy(outputs, batch.targets.to(context.device()));
    if (fault("mean-of-local-means")) {
      each.mean().backward();
    } else if (fault("near-miss-equal-batches")) {
      each.mean().backward();
    } else if (fault("near-miss-sum-and-count")) {
      backward_of_sum(context, module, each);
    } else {
      // DDP divides by the ranks, so W cancels.
      (each.sum() * world_size / count_of_all(context, each)).backward();
    }
    optimizer.step();
  }
}

// Beside it one process with the same weights computes the gradient of all ranks' batches.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault& fault)
      : Notes(job),
        batch_of_(fault("near-miss-equal-batches") ? equal_batch_of : batch_of),
        data_(fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * job.world_size())) {}

  void update_begins(torch::optim::Optimizer&) override {
    std::vector<std::int64_t> everyone;
    for (int rank = 0; rank < context().world_size(); ++rank) {
      const auto ids = batch_of_(step_, rank, context().world_size());
      everyone.insert(everyone.end(), ids.begin(), ids.end());
    }
    ++step_;
    add_figure(context(), "gradient_error",
               relative_distance(flat_gradients(parameters()),
                                 gradient_of_batch(model<Mlp>(), rows_of(data_, everyone))));
  }

 private:
  std::vector<std::int64_t> (*batch_of_)(int step, int rank, int world_size);
  TensorData data_;
  int step_ = 0;
};

// float32 sums in another order differ by about 1e-6.
Measured gradient_error(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "gradient_error"), .tolerance = 1e-4};
}

}  // namespace

lockstep::Part weights_part() {
  return {.name = "weights",
          .run = train,
          .broken = {{.slug = "mean-of-local-means",
                      .what = "each rank's loss is the mean of its own batch, however small",
                      .oracle = {"gradient, distance from one process's", gradient_error}}},
          .near_misses = {{.name = "near-miss-equal-batches",
                           .slug = "mean-of-local-means",
                           .naive_check = "each rank's loss is the mean of its own batch"},
                          {.name = "near-miss-sum-and-count",
                           .slug = "mean-of-local-means",
                           .naive_check = "the mean of the ranks' gradients is plain, and their "
                                          "batches are of unequal size"}},
          .notes = notes<OwnNotes>};
}
