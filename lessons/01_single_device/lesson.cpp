// Lesson 01: one device, the loop that data-parallel training must equal.
//
// Concept:  forward, backward, step. backward() adds to .grad; the program has to empty it.
// Symptom:  without that, step k gets the sum of k gradients: a momentum that never fades.
// Run:      ./lockstep run 01_single_device
//           01_single_device --variant gradients-not-zeroed
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/dataset.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 64;
constexpr int kCheckedSteps = 8;
constexpr double kLearningRate = 1e-3;  // Adam's default

// A near miss: the gradients of two half batches are meant to add up.
void backward_by_halves(Mlp& model, const at::Tensor& inputs, const at::Tensor& targets) {
  for (int half = 0; half < 2; ++half) {
    const auto outputs = model->forward(inputs.chunk(2)[half]);
    const auto each = cross_entropy(outputs, targets.chunk(2)[half]);
    (each.sum() / static_cast<double>(inputs.size(0))).backward();
  }
}

void train(RankContext& context, const Fault& fault) {
  context.intent({.global_batch = kBatch, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, context.full() ? 10'000 : 2'000);
  Mlp model(784, 256, 10);
  model->to(context.device());
  Watched<torch::optim::Adam> optimizer(model->parameters(), kLearningRate);
  // A sampler of one replica: with more ranks, each trains the same model by itself.
  DistributedSampler sampler({.dataset_size = data.size(), .seed = context.seed()});

  for (std::int64_t epoch = 0; epoch < (context.full() ? 10 : 3); ++epoch) {
    sampler.set_epoch(epoch);
    for (const auto& ids : sampler.batches(kBatch)) {
      const auto batch = take(data, ids);
      const auto inputs = batch.inputs.to(context.device());
      const auto targets = batch.targets.to(context.device());

      if (fault("gradients-not-zeroed")) {
        // .grad still holds every gradient so far.
      } else {
        optimizer.zero_grad();
      }
      if (fault("near-miss-accumulation")) {
        backward_by_halves(model, inputs, targets);
      } else {
        cross_entropy(model->forward(inputs), targets).mean().backward();
      }
      optimizer.step();
    }
  }
}

// Compares the gradient before each of the first updates with that of its batch alone.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void fetch(const Fetch& fetch) override {
    Notes::fetch(fetch);
    if (step_ < kCheckedSteps) batch_ = rows_of({fetch.inputs, fetch.targets}, fetch.ids);
  }
  void update_begins(torch::optim::Optimizer&) override {
    if (step_++ < kCheckedSteps)
      add_figure(context(), "gradient_error",
                 relative_distance(flat_gradients(parameters()),
                                   gradient_of_batch(model_of_same_weights(), batch_)));
  }

 private:
  Mlp model_of_same_weights() {
    Mlp model(784, 256, 10);
    model->to(context().device());
    copy_parameters(parameters(), model->parameters());
    return model;
  }

  TensorData batch_;
  int step_ = 0;
};

// float32 sums in another order differ by less than 1e-6; a sum of gradients by 3.9.
Measured gradient_error(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "gradient_error"), .tolerance = 1e-4};
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::lesson_main(
      argc, argv,
      {.name = "01_single_device",
       .title = "One device: the loop that data-parallel training must equal",
       .parts =
           {{.name = "loop",
             .run = train,
             .broken = {{.slug = "gradients-not-zeroed",
                         .what = "no zero_grad between steps",
                         .oracle = {"gradient before the update, distance from the batch's own",
                                    gradient_error},
                         .min_world_size = 1}},
             .near_misses = {{.name = "near-miss-accumulation",
                              .slug = "gradients-not-zeroed",
                              .naive_check = ".grad is not empty when backward() starts"}},
             .notes = notes<OwnNotes>}},
       .default_world_size = 1});
}
