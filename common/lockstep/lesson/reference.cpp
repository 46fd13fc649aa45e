#include <lockstep/lesson/reference.h>

namespace lockstep {
namespace {

at::Tensor flatten(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const auto& tensor : tensors)
    flat.push_back(tensor.detach().to(at::kCPU, at::kDouble).reshape(-1));
  return at::cat(flat);
}

}  // namespace

at::Tensor flat_parameters(const torch::nn::Module& module) {
  return flat_parameters(module.parameters());
}

at::Tensor flat_parameters(const std::vector<at::Tensor>& parameters) {
  return flatten(parameters);
}

at::Tensor flat_gradients(const torch::nn::Module& module) {
  return flat_gradients(module.parameters());
}

at::Tensor flat_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters)
    gradients.push_back(parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter));
  return flatten(gradients);
}

double relative_distance(const at::Tensor& value, const at::Tensor& reference) {
  const double scale = reference.abs().max().item<double>();
  const double distance = (value - reference).abs().max().item<double>();
  return distance == 0 ? 0 : distance / scale;
}

double scale_of(const at::Tensor& value, const at::Tensor& reference) {
  return at::dot(value, reference).item<double>() / at::dot(reference, reference).item<double>();
}

void copy_parameters(const torch::nn::Module& from, torch::nn::Module& to) {
  copy_parameters(from.parameters(), to.parameters());
  copy_parameters(from.buffers(), to.buffers());
}

void copy_parameters(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < from.size(); ++i) to.at(i).copy_(from[i]);
}

}  // namespace lockstep
