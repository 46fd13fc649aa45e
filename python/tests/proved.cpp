// A job for prove_test.py: proved WAY. Ranks sort points; each WAY is right or wrong in a way of its own.
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/dist/process_group.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <torch/torch.h>

#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string>

namespace {

using namespace lockstep;

constexpr std::int64_t kPoints = 96, kBatch = 6, kEpochs = 4;

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& points) {
    return out(torch::dropout(at::relu(norm(in(points))), 0.2, is_training()));
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(5, 8));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(8));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(8, 3));
};
TORCH_MODULE(Net);

at::Tensor loss_of(const std::string& way, const at::Tensor& scores, const at::Tensor& kinds) {
  // Each rank by its own counts.
  const auto counts = at::bincount(kinds, {}, 3).to(at::kFloat);
  return torch::cross_entropy_loss(scores, kinds,
                                   way == "kinds-weigh" ? 1 / (1 + counts) : at::Tensor());
}

void train(const std::string& way) {
  auto group = init_process_group();
  const int rank = group->getRank(), world_size = group->getSize();
  const auto dice = at::detail::createCPUGenerator(1);
  const auto points = at::randn({kPoints, 5}, dice, at::TensorOptions(at::kFloat));
  const auto kinds = points.slice(1, 0, 3).argmax(1);
  torch::manual_seed(2);
  Net net;
  std::optional<DistributedDataParallel<Net>> model;
  const bool by_hand = way == "sum" || way == "by-hand";
  if (!by_hand) model.emplace(net, group);
  torch::manual_seed(static_cast<std::uint64_t>(3 + rank));
  DistributedSampler sampler(
      {.dataset_size = kPoints, .num_replicas = world_size, .rank = rank, .seed = 4});
  Adam optimizer(net->parameters(), AdamOptions(0.01));
  const std::filesystem::path file = "saved.pt";
  std::int64_t begins = 0;
  if (std::filesystem::exists(file)) {
    const auto saved = load_checkpoint(file, {.map_location = "cpu"});
    load_state_dict(*net, saved.at("net"));
    if (way != "forgets") load_state_dict(optimizer, saved.at("optimizer"));
    begins = saved.at("epoch").as_int() + 1;
  }
  for (std::int64_t epoch = begins; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    std::int64_t batch = 0;
    for (const auto& ids : sampler.batches(kBatch)) {
      if (way == "throws" && ++batch == 3) throw std::runtime_error("no more points");
      const auto chosen = at::tensor(ids, at::kLong);
      auto given = points.index_select(0, chosen);
      if (way == "noise") given = given + 0.1 * at::randn(given.sizes());
      optimizer.zero_grad();
      const auto scores = way == "bypasses" || by_hand ? net->forward(given) : (*model)(given);
      loss_of(way, scores, kinds.index_select(0, chosen)).backward();
      for (const auto& each : by_hand ? net->parameters() : std::vector<at::Tensor>()) {
        auto gradient = each.grad();
        all_reduce(*group, gradient);
        if (way == "by-hand") gradient.div_(world_size);
      }
      optimizer.step();
    }
    if ((way == "saves" || way == "forgets") && rank == 0)
      save_checkpoint(file, Value::Dict{{"net", state_dict(*net)},
                                        {"optimizer", state_dict(optimizer)},
                                        {"epoch", epoch}});
    barrier(*group);
  }
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) try {
  train(argc > 1 ? argv[1] : "right");
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 1;
}
