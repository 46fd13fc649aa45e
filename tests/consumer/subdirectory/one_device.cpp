// The training of train.cpp on one device; lesson 03 shows the difference between the two.
#include <lockstep/train/dataset.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include <iostream>

int main() try {
  using namespace lockstep;
  const auto data = fashion_mnist_or_synthetic(Split::train, 1'000);
  Mlp model(784, 256, 10);
  SGD optimizer(model->parameters(), 0.1);
  for (int epoch = 0; epoch < 2; ++epoch) {
    auto sum = torch::zeros({}), count = torch::zeros({});
    for (const auto& ids : torch::randperm(data.size()).split(32)) {
      const TensorData batch{data.inputs.index_select(0, ids), data.targets.index_select(0, ids)};
      optimizer.zero_grad();
      const auto loss = cross_entropy(model->forward(batch.inputs), batch.targets).mean();
      loss.backward();
      optimizer.step();
      sum += loss.detach() * batch.size();
      count += batch.size();
    }
    std::cout << "epoch " << epoch << ": loss " << (sum / count).item<double>() << "\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 1;
}
