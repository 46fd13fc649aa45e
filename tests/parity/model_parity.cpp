// Makes the models from seed argv[1] and writes, for each tensor, a line "name count" and its
// float32 values: the parameters and buffers, then the outputs for inputs drawn next from the same
// generator. model_parity.py compares them with Python's.
#include <lockstep/launch/guarded.h>
#include <lockstep/train/models.h>

#include <exception>
#include <iostream>
#include <string>

#include "write.h"

namespace {

void write(const std::string& name, const at::Tensor& tensor) {
  std::cout << name << ' ' << tensor.numel() << '\n';
  lockstep::parity::write(std::cout, tensor.to(at::kFloat));
}

template <class Holder>
void answer(const std::string& prefix, Holder model) {
  for (const auto& item : model->named_parameters()) write(prefix + item.key(), item.value());
  const auto inputs = torch::rand({5, 784});
  write(prefix + "training", model(inputs));
  for (const auto& item : model->named_buffers()) write(prefix + item.key(), item.value());
  model->eval();
  write(prefix + "evaluation", model(inputs));
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::launch::guarded([&] {
    torch::manual_seed(argc > 1 ? std::stoull(argv[1]) : 0);
    answer("mlp.", lockstep::Mlp(784, 256, 10));
    answer("conv_net.", lockstep::ConvNet(10));
  });
}
