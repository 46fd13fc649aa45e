// Lesson 02, part "bottleneck": what the first device pays. Linear(10, 1), mean squared error, batch
// 64, SGD 0.01.
//
// Concept:  with gather-and-reduce, every parameter leaves device 0 and every gradient comes back
//           to it. In a ring each device sends and receives about 2 (n-1)/n of the bytes.
// Symptom:  device 0 holds more and moves more, and the others wait for it. Results are right. In
//           DDP (lesson 03) no device is special.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/train/data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include <memory>
#include <numeric>

namespace {

using namespace lockstep;

constexpr int kSteps = 10;
constexpr std::int64_t kBatch = 64;  // of the whole process

void train(RankContext& context, const Fault& fault) {
  const auto devices = context.devices();
  auto model = torch::nn::Sequential(torch::nn::Linear(10, 1));
  model->to(devices[0]);
  const auto samples = at::randn({kSteps * kBatch, 10});
  const TensorData data{samples, samples.sum(1, true)};
  auto replicas = replicate(model.ptr(), devices);
  std::vector<std::unique_ptr<SGD>> optimizers;  // of each device
  for (const auto& replica : replicas)
    optimizers.push_back(std::make_unique<SGD>(replica->parameters(), 0.01));

  for (int step = 0; step < kSteps; ++step) {
    const auto batch = take(data, global_batch(step, kBatch));
    const auto inputs = scatter(batch.inputs, devices);
    const auto targets = scatter(batch.targets, devices);
    for (auto& optimizer : optimizers) optimizer->zero_grad();
    std::vector<at::Tensor> outputs(inputs.size());
    parallel_apply(inputs.size(), [&](std::size_t i) {
      outputs[i] = replicas[i]->as<torch::nn::SequentialImpl>()->forward(inputs[i]);
    });
    std::vector<double> weights(replicas.size(), 0);  // of a device without a part: 0
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      tell_loss(at::mse_loss(outputs[i], targets[i], at::Reduction::None)).mean().backward();
      weights[i] = static_cast<double>(inputs[i].size(0)) / kBatch;
    }

    if (fault("device-zero-bottleneck")) {
      // DataParallel: sum on device 0, update there, copy the new parameters to everybody.
      reduce_gradients(replicas, weights);
      optimizers[0]->step();
      replicas = replicate(model.ptr(), devices);
    } else {
      ring_all_reduce_gradients(replicas, weights);
      for (auto& optimizer : optimizers) optimizer->step();
    }
  }
}

// Counts the gradients' bytes that each device receives.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&)
      : Notes(job), received_(static_cast<std::size_t>(job.world_size())) {}

  void transfer(std::size_t, std::size_t to, std::int64_t bytes, const std::string& what) override {
    if (what == "gradients") received_.at(to) += static_cast<double>(bytes);
  }
  void finish() override {
    Notes::finish();
    context().outcome().figures["gradient bytes received"] = received_;
  }

 private:
  std::vector<double> received_;
};

// Of all gradient bytes that went from one device to another, the share that ended on device 0.
Measured share_of_device_zero(const Outcomes& outcomes) {
  const auto& received = outcomes.at(0).figures.at("gradient bytes received");
  const double all = std::accumulate(received.begin(), received.end(), 0.0);
  return {.expected = 1.0 / static_cast<double>(received.size()),
          .observed = received[0] / all,
          .tolerance = 0.2};
}

}  // namespace

lockstep::Part bottleneck_part() {
  return {.name = "bottleneck",
          .run = train,
          .broken = {{.slug = "device-zero-bottleneck",
                      .what = "gradients gathered, reduced and applied on device 0",
                      .oracle = {"share of the gradients' bytes that end on device 0",
                                 share_of_device_zero}}},
          .participants = lockstep::Participants::devices,
          .notes = notes<OwnNotes>};
}
