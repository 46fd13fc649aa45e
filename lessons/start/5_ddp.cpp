// Step 5: DistributedDataParallel takes the mean, DistributedSampler deals the shares.
#include <lockstep/dist/process_group.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/models.h>

#include <cstdio>

using torch::nn::functional::cross_entropy;

int main() {
  auto group = lockstep::init_process_group();
  const int rank = group->getRank(), world_size = group->getSize();
  torch::manual_seed(0);
  const auto inputs = torch::randn({1024, 20});
  const auto targets = inputs.mm(torch::randn({20, 4})).argmax(1);
  lockstep::Mlp mlp(20, 64, 4);
  lockstep::DistributedDataParallel<lockstep::Mlp> model(mlp, group);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  lockstep::DistributedSampler sampler(
      {.dataset_size = 1024, .num_replicas = world_size, .rank = rank});

  for (int epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    for (const auto& ids : sampler.batches(64 / world_size)) {
      const auto share = torch::tensor(ids);
      optimizer.zero_grad();
      const auto outputs = model(inputs.index({share}));
      auto loss = cross_entropy(outputs, targets.index({share}));
      loss.backward();
      optimizer.step();
    }
    const torch::NoGradGuard no_grad;
    const auto outputs = model(inputs);
    const double loss = cross_entropy(outputs, targets).item<double>();
    std::printf("rank %d, epoch %d: loss %.6f\n", rank, epoch, loss);
  }
  lockstep::destroy_process_group(group);
}
