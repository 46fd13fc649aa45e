// The example of docs/library.md, whole: an MLP on Fashion-MNIST under DistributedDataParallel. One process a
// rank, started by torchrun or by anything that sets its environment.
#include <lockstep/dist/process_group.h>
#include <lockstep/train/dataset.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include <iostream>

int main() try {
  using namespace lockstep;
  const auto data = fashion_mnist_or_synthetic(Split::train, 1'000);
  auto group = init_process_group();
  DistributedDataParallel<Mlp> model(Mlp(784, 256, 10), group);
  SGD optimizer(model.parameters(), 0.1);
  DistributedSampler sampler(
      {.dataset_size = data.size(), .num_replicas = group->getSize(), .rank = group->getRank()});
  for (int epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);
    auto sum = torch::zeros({}), count = torch::zeros({});
    for (const auto& ids : sampler.batches(32)) {
      const auto batch = take(data, ids);
      optimizer.zero_grad();
      const auto loss = cross_entropy(model(batch.inputs), batch.targets).mean();
      loss.backward();
      optimizer.step();
      sum += loss.detach() * batch.size();
      count += batch.size();
    }
    all_reduce(*group, sum);
    all_reduce(*group, count);
    if (group->getRank() == 0)
      std::cout << "epoch " << epoch << ": loss " << (sum / count).item<double>() << "\n";
  }
  destroy_process_group(group);
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 1;
}
