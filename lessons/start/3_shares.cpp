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
    const auto seeded = at::make_generator<at::CPUGeneratorImpl>(epoch);
    const auto order = torch::randperm(1024, seeded);
    for (const auto& batch : order.split(64)) {
      const auto share = batch.slice(0, rank, batch.size(0), world_size);
      optimizer.zero_grad();
      const auto outputs = model->forward(inputs.index({share}));
      auto loss = cross_entropy(outputs, targets.index({share}));
      loss.backward();
      optimizer.step();
    }
    const torch::NoGradGuard no_grad;
    const auto outputs = model->forward(inputs);
    const double loss = cross_entropy(outputs, targets).item<double>();
    std::printf("rank %d, epoch %d: loss %.6f\n", rank, epoch, loss);
  }
  lockstep::destroy_process_group(group);
}
