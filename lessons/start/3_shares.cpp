// Step 3: each rank takes its share of every batch.
#include <lockstep/dist/process_group.h>
#include <lockstep/train/models.h>

#include <cstdio>

using torch::nn::functional::cross_entropy;

int main() {
  auto group = lockstep::init_process_group();
  const int rank = group->getRank(), world_size = group->getSize();
  torch::manual_seed(0);
  const auto inputs = torch::randn({1024, 20});
  const auto targets = inputs.mm(torch::randn({20, 4})).argmax(1);
  lockstep::Mlp model(20, 64, 4);
  torch::optim::SGD optimizer(model->parameters(), 0.1);

  for (int epoch = 0; epoch < 3; ++epoch) {
    const auto order = torch::randperm(1024, at::make_generator<at::CPUGeneratorImpl>(epoch));
    for (const auto& batch : order.split(64)) {
      const auto share = batch.slice(0, rank, batch.size(0), world_size);
      optimizer.zero_grad();
      auto loss = cross_entropy(model->forward(inputs.index({share})), targets.index({share}));
      loss.backward();
      optimizer.step();
    }
    const torch::NoGradGuard no_grad;
    const auto loss = cross_entropy(model->forward(inputs), targets);
    std::printf("rank %d of %d, epoch %d: loss %.6f\n", rank, world_size, epoch,
                loss.item<double>());
  }
  lockstep::destroy_process_group(group);
}
