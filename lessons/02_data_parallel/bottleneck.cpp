// Lesson 02, part "bottleneck": what the first device pays. Article B's model: Linear(10, 1), mean
// squared error, batch 64, SGD 0.01.
//
// Concept:  with gather-and-reduce, every parameter leaves device 0 and every gradient comes back
//           to it. In a ring each device sends and receives about 2 (n-1)/n of the bytes.
// Symptom:  device 0 holds more and moves more, and the others wait for it. Results are right. In
//           DDP (lesson 03) no device is special.
#include <lockstep/lesson/figures.h>
#include <lockstep/train/data_parallel.h>

#include <numeric>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr int kSteps = 10;
constexpr std::int64_t kBatch = 64;  // of the whole process: article B's DataParallel example

void train(RankContext& context, const Fault& fault) {
  const int count = context.world_size();
  const auto devices = context.devices();
  std::vector<double> received(count, 0);
  const TransferObserver observer = [&](const Transferred& moved) {
    if (moved.from == moved.to) return;
    if (moved.what == std::string("gradients"))
      received[moved.to] += static_cast<double>(moved.bytes);
    context.probes(moved.to).transfer(moved.from, moved.to, moved.bytes, moved.what);
  };
  auto model = torch::nn::Sequential(torch::nn::Linear(10, 1));
  model->to(devices[0]);
  auto replicas = replicate(model.ptr(), devices);
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
  for (int i = 0; i < count; ++i) {
    optimizers.push_back(std::make_unique<torch::optim::SGD>(replicas[i]->parameters(), 0.01));
  }
  Mean loss_of_epoch;
  for (int step = 0; step < kSteps; ++step) {
    const auto inputs = at::randn({kBatch, 10});
    const auto targets = inputs.sum(1, true);
    const auto parts = scatter(inputs, devices);
    const auto part_targets = scatter(targets, devices);
    std::vector<double> weights;
    for (const auto& part : parts) weights.push_back(static_cast<double>(part.size(0)) / kBatch);
    for (int i = 0; i < count; ++i) {
      optimizers[i]->zero_grad();
      context.probes(i).attach(*replicas[i]);
      if (step == 0) context.probes(i).start();
    }
    std::vector<at::Tensor> losses(parts.size());
    parallel_apply(parts.size(), [&](std::size_t i) {
      auto& replica = *replicas[i]->as<torch::nn::SequentialImpl>();
      losses[i] = at::mse_loss(replica.forward(parts[i]), part_targets[i]);
      losses[i].backward();
    });
    for (std::size_t i = parts.size(); i < replicas.size(); ++i) {
      // A device without a part still takes its place in the reduction.
      for (auto& parameter : replicas[i]->parameters())
        parameter.mutable_grad() = at::zeros_like(parameter);
      weights.push_back(0);
    }

    if (fault("device-zero-bottleneck")) {  // PITFALL device-zero-bottleneck
      // DataParallel: sum on device 0, update there, copy the new parameters to everybody.
      reduce_gradients(replicas, weights, observer);
      optimizers[0]->step();
      replicas = replicate(model.ptr(), devices, observer);
    } else {
      ring_all_reduce_gradients(replicas, weights, observer);
      for (auto& optimizer : optimizers) optimizer->step();
    }
    for (int i = 0; i < count; ++i) context.probes(i).updated(*optimizers[i]);
    for (const auto& loss : losses) loss_of_epoch.add(loss);
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().figures["gradient bytes received"] = received;
}

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
          .participants = lockstep::Participants::devices};
}
