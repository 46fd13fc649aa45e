// One of two ranks that train a little, on the CPU over Gloo or on GPUs over NCCL; device_test.cpp compares what comes out.
//
// usage: device_rank CASE DEVICE OUT      CASE as in cases(); DEVICE is cpu, cuda, or cuda-shared
// Rank 0 writes to OUT how far each parameter and buffer has moved, as text.
#include <lockstep/base/error.h>
#include <lockstep/launch/guarded.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/comm_hooks.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/grad_scaler.h>
#include <lockstep/train/models.h>
#include <lockstep/train/sync_batch_norm.h>

#include <fstream>
#include <map>
#include <optional>

namespace lockstep {
namespace {

constexpr int kSteps = 4;
constexpr std::int64_t kBatch = 16;

// Convolution, SyncBatchNorm, classifier. No bias before the norm: its gradient is rounding alone.
struct SyncedImpl : torch::nn::Module {
  explicit SyncedImpl(const ProcessGroupPtr& group)
      : conv(torch::nn::Conv2dOptions(1, 8, 3).bias(false)), bn(8, group), fc(8 * 26 * 26, 10) {
    register_module("conv", conv);
    register_module("bn", bn);
    register_module("fc", fc);
  }
  at::Tensor forward(const at::Tensor& inputs) {
    const auto images = inputs.view({-1, 1, 28, 28});
    return fc(torch::relu(bn(conv(images))).flatten(1));
  }
  torch::nn::Conv2d conv;
  SyncBatchNorm bn;
  torch::nn::Linear fc;
};
TORCH_MODULE(Synced);

struct Case {
  int accumulated = 1;  // backwards an update, all but the last in no_sync
  bool bf16_hook = false;
  std::optional<at::ScalarType> autocast;
  bool scaled = false;  // GradScaler
  double max_norm = 0;  // clip_grad_norm_; 0: none
  bool uneven = false;  // rank 1 has half of rank 0's samples
};

const std::map<std::string, Case>& cases() {
  static const std::map<std::string, Case> all{
      {"plain", {}},
      {"no_sync", {.accumulated = 3}},
      {"bf16_hook", {.bf16_hook = true}},
      {"autocast_bf16", {.autocast = at::kBFloat16}},
      {"autocast_fp16_scaled", {.autocast = at::kHalf, .scaled = true, .max_norm = 0.5}},
      {"clipped", {.max_norm = 0.5}},
      {"sync_batch_norm", {.uneven = true}},
  };
  return all;
}

using Tensors = std::map<std::string, at::Tensor>;

Tensors state_of(const torch::nn::Module& module) {
  Tensors state;
  for (const auto& item : module.named_parameters())
    state[item.key()] = item.value().detach().cpu().to(at::kDouble, false, /*copy=*/true);
  for (const auto& item : module.named_buffers())
    state[item.key()] = item.value().detach().cpu().to(at::kDouble, false, /*copy=*/true);
  return state;
}

template <class Holder>
Tensors train(const Case& of, Holder net, const ProcessGroupPtr& group) {
  const auto device = device_of(*group);
  net->to(device);
  const auto before = state_of(*net);
  DistributedDataParallel<Holder> model(net, group);
  if (of.bf16_hook) model.engine().register_comm_hook(bf16_compress_hook(group));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  GradScaler scaler({.init_scale = 1024, .enabled = of.scaled});
  // Drawn on the CPU: the same numbers for every device.
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7 + group->getRank());
  const auto count = of.uneven && group->getRank() == 1 ? kBatch / 2 : kBatch;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int part = 0; part < of.accumulated; ++part) {
      const auto inputs = torch::randn({count, 784}, generator).to(device);
      const auto targets = torch::randint(10, {count}, generator, torch::kInt64).to(device);
      std::optional<NoSync> no_sync;
      if (part + 1 < of.accumulated) no_sync.emplace(model.engine());
      at::Tensor loss;
      {
        std::optional<Autocast> autocast;
        if (of.autocast) autocast.emplace(device.type(), *of.autocast);
        loss = torch::nn::functional::cross_entropy(model(inputs), targets) / of.accumulated;
      }
      scaler.scale(loss).backward();
    }
    if (of.max_norm > 0) {
      if (of.scaled) scaler.unscale_(optimizer);
      clip_grad_norm_(net->parameters(), of.max_norm);
    }
    if (of.scaled) {
      if (!scaler.step(optimizer)) throw Error("a step was left out: the scale is too large");
      scaler.update();
    } else {
      optimizer.step();
    }
  }
  auto moved = state_of(*net);
  for (auto& [name, tensor] : moved) tensor -= before.at(name);
  return moved;
}

void run(const std::string& name, const std::string& device, const std::string& out) {
  const auto& of = cases().at(name);
  InitOptions options;
  options.backend = device == "cpu" ? "gloo" : "nccl";
  options.share_gpu = device == "cuda-shared";
  load_backend(options.backend);
  // Convolutions on a GPU keep ten bits of a float otherwise.
  at::globalContext().setAllowTF32CuDNN(false);
  auto group = init_process_group(options);
  torch::manual_seed(1);
  const auto moved = name == "sync_batch_norm" ? train(of, Synced(group), group)
                                               : train(of, Mlp(784, 64, 10), group);
  if (group->getRank() == 0) {
    std::ofstream file(out);
    file.precision(17);
    for (const auto& [key, tensor] : moved) {
      file << key << ' ' << tensor.numel();
      const auto flat = tensor.flatten();
      for (std::int64_t i = 0; i < flat.numel(); ++i) file << ' ' << flat[i].item<double>();
      file << '\n';
    }
  }
  destroy_process_group(group);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::launch::guarded([&] {
    if (argc != 4) throw lockstep::UsageError("usage: device_rank CASE cpu|cuda|cuda-shared OUT");
    lockstep::run(argv[1], argv[2], argv[3]);
  });
}
