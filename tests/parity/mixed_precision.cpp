// Reads one case a line and writes what it computes as little-endian float64; mixed_precision.py computes the
// same in Python.
//   norm   seed tensors dtype max_norm norm_type spoil    clip_grad_norm_: the norm, the gradients
//   value  seed tensors dtype clip_value                  clip_grad_value_: the gradients
//   scaler seed steps init_scale growth backoff interval  GradScaler: per step scale, tracker, parameters
//   cast   seed dtype                                     Autocast: outputs and gradients of a small network
#include <lockstep/launch/guarded.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/grad_scaler.h>
#include <lockstep/train/models.h>

#include <exception>
#include <iostream>
#include <limits>
#include <sstream>

#include "write.h"

namespace {

void write(const at::Tensor& tensor) {
  lockstep::parity::write(std::cout, tensor.to(at::kDouble));
}

at::ScalarType dtype_named(const std::string& name) {
  if (name == "float16") return at::kHalf;
  if (name == "bfloat16") return at::kBFloat16;
  return name == "float64" ? at::kDouble : at::kFloat;
}

std::vector<at::Tensor> with_gradients(std::uint64_t seed, int tensors, at::ScalarType dtype) {
  torch::manual_seed(seed);
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < tensors; ++i) {
    parameters.push_back(torch::zeros({3 + 17 * i}, dtype).set_requires_grad(true));
    if (i % 5 != 4)  // every fifth parameter has no gradient
      parameters.back().mutable_grad() = torch::randn({3 + 17 * i}, at::kDouble).to(dtype);
  }
  return parameters;
}

void write_gradients(const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters)
    if (parameter.grad().defined()) write(parameter.grad());
}

void clip_norm(std::istream& in) {
  std::uint64_t seed;
  int tensors;
  std::string dtype, norm_type, spoil;
  double max_norm;
  in >> seed >> tensors >> dtype >> max_norm >> norm_type >> spoil;
  auto parameters = with_gradients(seed, tensors, dtype_named(dtype));
  if (spoil != "no") parameters[0].mutable_grad()[1] = std::stod(spoil);
  write(lockstep::clip_grad_norm_(parameters, max_norm, std::stod(norm_type)));
  write_gradients(parameters);
}

void clip_value(std::istream& in) {
  std::uint64_t seed;
  int tensors;
  std::string dtype;
  double value;
  in >> seed >> tensors >> dtype >> value;
  const auto parameters = with_gradients(seed, tensors, dtype_named(dtype));
  torch::nn::utils::clip_grad_value_(parameters, value);
  write_gradients(parameters);
}

void scaler(std::istream& in) {
  std::uint64_t seed;
  int steps;
  lockstep::GradScalerOptions options;
  in >> seed >> steps >> options.init_scale >> options.growth_factor >> options.backoff_factor >>
      options.growth_interval;
  torch::manual_seed(seed);
  const auto parameter = torch::randn({7, 5}).set_requires_grad(true);
  torch::optim::SGD optimizer({parameter}, 0.1);
  lockstep::GradScaler scaler(options);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    scaler.scale((parameter * torch::randn({7, 5})).sum()).backward();
    if ((step * 7 + static_cast<int>(seed)) % 5 == 0)
      parameter.mutable_grad()[2][3] = step % 2 == 0 ? std::numeric_limits<double>::infinity()
                                                     : std::numeric_limits<double>::quiet_NaN();
    if (step % 2 == 0) {
      scaler.unscale_(optimizer);
      lockstep::clip_grad_norm_({parameter}, 1.0);
    }
    scaler.step(optimizer);
    if (step % 11 == 10)
      scaler.update(512.0);
    else
      scaler.update();
    if (step == steps / 2) {  // go on with another scaler and this one's state
      const auto state = scaler.state_dict();
      scaler = lockstep::GradScaler();
      scaler.load_state_dict(state);
    }
    const auto state = scaler.state_dict();
    write(torch::tensor(
        {state.at("scale").as_double(), static_cast<double>(state.at("_growth_tracker").as_int())},
        at::kDouble));
    write(parameter);
  }
}

void cast(std::istream& in) {
  std::uint64_t seed;
  std::string dtype;
  in >> seed >> dtype;
  torch::manual_seed(seed);
  lockstep::Mlp net(20, 16, 10);
  const auto inputs = torch::randn({8, 20});
  at::Tensor outputs, loss;
  {
    const lockstep::Autocast autocast(at::kCPU, dtype_named(dtype));
    outputs = net->forward(inputs);
    loss = torch::cross_entropy_loss(outputs, torch::arange(8));
    const lockstep::Autocast off(at::kCPU, dtype_named(dtype), false);
    write(net->forward(inputs));
  }
  loss.backward();
  write(outputs);
  write(loss);
  write_gradients(net->parameters());
  write(net->forward(inputs));  // outside nothing is cast
}

void answer(const std::string& line) {
  std::istringstream in(line);
  std::string kind;
  in >> kind;
  if (kind == "norm")
    clip_norm(in);
  else if (kind == "value")
    clip_value(in);
  else if (kind == "scaler")
    scaler(in);
  else
    cast(in);
  if (!in) throw std::runtime_error("not a case: " + line);
}

}  // namespace

int main() {
  return lockstep::launch::guarded([&] {
    torch::set_num_threads(1);
    for (std::string line; std::getline(std::cin, line);) answer(line);
  });
}
