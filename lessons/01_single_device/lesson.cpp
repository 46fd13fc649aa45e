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
#include <lockstep/train/models.h>

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 64;
constexpr int kCheckedSteps = 8;
constexpr double kLearningRate = 1e-3;  // Adam's default, and article D's

void train(RankContext& context, const Fault& fault) {
  const auto data = fashion_mnist_or_synthetic(Split::train, context.full() ? 10'000 : 2'000);
  const auto device = context.device();
  Mlp model(784, 256, 10);
  model->to(device);
  torch::optim::Adam optimizer(model->parameters(), kLearningRate);
  // One device: a sampler of one replica. More ranks train the same thing, each for itself.
  DistributedSampler sampler({.dataset_size = data.size(), .seed = context.seed()});

  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch, .loss_reduction = "mean"});
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.attach(*model);
  probes.start();

  int step = 0;
  for (std::int64_t epoch = 0; epoch < (context.full() ? 10 : 3); ++epoch) {
    sampler.set_epoch(epoch);
    probes.set_epoch(epoch);
    probes.pass_begin("train", epoch);
    Mean loss_of_epoch, accuracy;
    const auto batches = sampler.batches(kBatch);
    for (const auto& ids : batches) {
      probes.samples("train", ids);
      const auto batch = take(data, ids);
      at::Tensor expected;  // for the oracle, of the first few steps
      if (epoch == 0 && ++step <= kCheckedSteps) expected = gradient_of_batch(model, batch);

      if (fault("gradients-not-zeroed")) {  // PITFALL gradients-not-zeroed
        // Nothing: .grad still holds every gradient so far.
      } else {
        optimizer.zero_grad();
      }
      const auto add_gradient_of = [&](const TensorData& samples) {
        const auto inputs = samples.inputs.to(device), targets = samples.targets.to(device);
        const auto outputs = model->forward(inputs);
        const auto each = torch::cross_entropy_loss(outputs, targets, {}, at::Reduction::None);
        const auto loss = each.sum() / static_cast<double>(ids.size());
        probes.loss(loss, each);
        loss.backward();
        loss_of_epoch.add(each);
        accuracy.add(outputs.argmax(1) == targets);
      };
      // A near miss: two half batches whose gradients are meant to add up.
      if (fault("near-miss-accumulation")) {
        for (int half = 0; half < 2; ++half)
          add_gradient_of({batch.inputs.chunk(2)[half], batch.targets.chunk(2)[half]});
      } else {
        add_gradient_of(batch);
      }
      if (expected.defined())
        add_figure(context, "gradient_error", relative_distance(flat_gradients(*model), expected));
      probes.gradients_ready();
      optimizer.step();
      probes.updated(optimizer);
    }
    probes.pass_end("train", epoch, static_cast<std::int64_t>(batches.size()));
    probes.metric("accuracy", "train", accuracy.sum, accuracy.count);
    context.outcome().losses.push_back(loss_of_epoch.value());
    context.outcome().accuracy.push_back(accuracy.value());
  }
}

// The gradient before each of the first updates, against the gradient of that batch alone. float32
// sums in another order differ by less than 1e-6; a sum of gradients by 3.9 (reports/measured/run).
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
                              .naive_check = ".grad is not empty when backward() starts"}}}},
       .default_world_size = 1});
}
