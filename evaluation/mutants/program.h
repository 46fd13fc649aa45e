// Three training programs that are no lessons. They differ in model, data, optimizer and in how the ranks keep
// their gradients alike; what they have in common, the loop, is in training.cpp.
#pragma once

#include <lockstep/train/dataset.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::mutants {

// How the ranks agree on a gradient.
enum class Engine {
  ddp,      // lockstep::DistributedDataParallel
  by_hand,  // an all-reduce for each parameter, after the backwards of two microbatches
  sharded,  // one flat all-reduce; each rank updates its share of the parameters and broadcasts it
};

// What may be chosen otherwise without making the program wrong.
struct Settings {
  std::string optimizer;  // "sgd", "momentum", "adam", "adamw"
  double lr = 0.05;
  double weight_decay = 0;
  double max_norm = 0;  // of the gradient; 0: it is not clipped
  double dropout = 0;
  double noise = 0;  // standard deviation of what is added to the inputs of a training batch
  std::int64_t batch = 16;
  std::int64_t microbatches = 1;  // in an update
  std::int64_t epochs = 2;
  double bucket_cap_mb = 0.02;  // of DDP: several buckets
  bool low_precision = false;   // the forward in bfloat16
  bool halve_lr = false;        // after every epoch
  std::string prefix;           // of the parameters' names
};

// Two linear layers, with what the settings ask for between them.
class NetImpl : public torch::nn::Module {
 public:
  NetImpl(std::int64_t in, std::int64_t hidden, std::int64_t out, const Settings& settings);
  torch::Tensor forward(const torch::Tensor& inputs);

 private:
  double dropout_;
  bool low_precision_;
  torch::nn::Linear first_{nullptr}, second_{nullptr};
};
TORCH_MODULE(Net);

struct Program {
  std::string name;
  Engine engine;
  Settings settings;
  bool classifies = true;  // else it reproduces its inputs

  TensorData data(Split split) const;
  Net make_model() const;
  // One loss for each sample: [n].
  torch::Tensor losses(const torch::Tensor& outputs, const TensorData& batch) const;
  // The sum over the batch of what the program reports: hits, or losses.
  double score(const torch::Tensor& outputs, const TensorData& batch) const;
  std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      const std::vector<at::Tensor>& parameters) const;
};

// "pictures", "letters" and "codes".
std::vector<Program> programs();

}  // namespace lockstep::mutants
