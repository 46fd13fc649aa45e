// Lesson 02, part "batch": how a batch is cut, and what each part's gradient weighs.
//
// Concept:  chunk() cuts a batch into at most as many parts as there are devices, the last one
//           smaller. The mean over the batch weighs each part by its samples.
// Symptom:  5 samples over 4 devices are 3 parts: with 4 copies of the model the step throws. And
//           the mean of the parts' means is not the batch's mean as soon as one part is smaller.
#include <lockstep/base/error.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include <numeric>

namespace {

using namespace lockstep;

constexpr int kSteps = 12;

// Samples of step k. Every other batch has unequal parts, and the last one leaves a device without
// a part: what the end of a data set may look like.
std::int64_t batch_size(int step, int devices) {
  if (step == kSteps - 1) return devices > 2 ? devices + 1 : 1;
  return 16 * devices - (step % 2 == 0 ? 0 : devices - 1);
}

std::vector<std::int64_t> batch_of(int step, int devices) {
  std::int64_t first = 0;
  for (int before = 0; before < step; ++before) first += batch_size(before, devices);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(batch_size(step, devices)));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// Each copy of the model runs its part, side by side.
std::vector<at::Tensor> forward(const std::vector<std::shared_ptr<torch::nn::Module>>& copies,
                                const std::vector<at::Tensor>& parts) {
  if (copies.size() != parts.size())
    throw Error("must have as many inputs as modules: the batch was cut into " +
                std::to_string(parts.size()) + ", and " + std::to_string(copies.size()) +
                " modules wait for a part");
  std::vector<at::Tensor> outputs(parts.size());
  parallel_apply(parts.size(),
                 [&](std::size_t i) { outputs[i] = copies[i]->as<MlpImpl>()->forward(parts[i]); });
  return outputs;
}

void train(RankContext& context, const Fault& fault) {
  const auto devices = context.devices();
  const int count = context.world_size();
  const auto data = fashion_mnist_or_synthetic(Split::train, 16 * count * kSteps);
  Mlp model(784, 256, 10);
  model->to(devices[0]);
  SGD optimizer(model->parameters(), 0.01);

  for (int step = 0; step < kSteps; ++step) {
    const auto batch = take(data, batch_of(step, count));
    optimizer.zero_grad();
    const auto inputs = scatter(batch.inputs, devices);
    const auto targets = scatter(batch.targets, devices);

    std::size_t copies = inputs.size();
    if (fault("odd-batch-split")) {
      copies = devices.size();  // One for each device that was asked for, whatever the batch gave.
    }
    const auto replicas = replicate(model.ptr(), {devices.begin(), devices.begin() + copies});
    const auto outputs = forward(replicas, inputs);
    for (std::size_t i = 0; i < copies; ++i)
      cross_entropy(outputs[i], targets[i]).mean().backward();

    std::vector<double> weights(copies);
    for (std::size_t i = 0; i < copies; ++i) {
      if (fault("unequal-chunk-mean")) {
        weights[i] = 1.0 / static_cast<double>(copies);
      } else {
        weights[i] = static_cast<double>(inputs[i].size(0)) / static_cast<double>(batch.size());
      }
    }
    reduce_gradients(replicas, weights);
    optimizer.step();
  }
}

// Compares each reduced gradient with that of the whole batch.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void fetch(const Fetch& fetch) override {
    Notes::fetch(fetch);
    batch_ = rows_of({fetch.inputs, fetch.targets}, fetch.ids);
  }
  void update_begins(torch::optim::Optimizer&) override {
    add_figure(
        context(), "gradient_error",
        relative_distance(flat_gradients(parameters()), gradient_of_batch(model<Mlp>(), batch_)));
  }

 private:
  TensorData batch_;
};

Measured finished_batches(const Outcomes& outcomes) {
  const auto& figures = outcomes.at(0).figures;
  const auto found = figures.find("gradient_error");
  return {.expected = kSteps,
          .observed = found == figures.end() ? 0.0 : static_cast<double>(found->second.size()),
          .tolerance = 0};
}

Measured gradient_error(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "gradient_error"), .tolerance = 1e-4};
}

}  // namespace

lockstep::Part batch_part() {
  return {
      .name = "batch",
      .run = train,
      .broken = {{.slug = "odd-batch-split",
                  .what = "as many copies as devices, though the batch gave fewer parts",
                  .oracle = {"batches trained", finished_batches},
                  .crashes = true},
                 {.slug = "unequal-chunk-mean",
                  .what = "plain mean of the parts' means, though one part is smaller",
                  .oracle = {"reduced gradient, distance from the whole batch's", gradient_error}}},
      .participants = lockstep::Participants::devices,
      .records_transfers = false,  // all go through device 0: that fault is bottleneck.cpp's
      .notes = notes<OwnNotes>};
}
