// One rank of the learning-rate benchmark; lr_scaling.py starts them. MLP 784-256-10, 64 samples a
// rank.
//
// usage: lr_scaling sgd|adam RATE WARMUP_EPOCHS SAMPLES EPOCHS SEED STORE RANK WORLD
//   RATE  after the warm-up, which rises from a tenth of it; constant from then on
// Rank 0 writes: seconds of training, updates, training loss of the last epoch (over all ranks), then loss and
// accuracy on the test set, which it evaluates alone and after the clock has stopped.
#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/guarded.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/dataset.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/models.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

namespace lockstep {
namespace {

constexpr std::int64_t kBatch = 64;

struct Settings {
  std::string optimizer;
  double rate = 0;
  std::int64_t warmup_epochs = 0, samples = 0, epochs = 0;
  std::uint64_t seed = 0;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Settings& settings,
                                                        std::vector<at::Tensor> parameters) {
  if (settings.optimizer == "sgd")
    return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(settings.rate));
  if (settings.optimizer == "adam")
    return std::make_unique<Adam>(std::move(parameters), AdamOptions(settings.rate));
  throw UsageError("the optimizer must be sgd or adam, and is \"" + settings.optimizer + "\"");
}

void evaluate(Mlp& model) {
  const torch::NoGradGuard no_grad;
  const auto test = fashion_mnist_or_synthetic(Split::test, 0);
  const auto outputs = model->forward(test.inputs);
  std::printf("%.6f %.6f\n", torch::cross_entropy_loss(outputs, test.targets).item<double>(),
              (outputs.argmax(1) == test.targets).to(at::kDouble).mean().item<double>());
}

void run(const Settings& settings, const InitOptions& place) {
  torch::set_num_threads(1);
  auto group = init_process_group(place);
  const auto data = fashion_mnist_or_synthetic(Split::train, settings.samples);
  torch::manual_seed(settings.seed);
  Mlp module(784, 256, 10);
  DistributedDataParallel<Mlp> model(module, group);
  auto optimizer = make_optimizer(settings, model.parameters());
  DistributedSampler sampler({.dataset_size = data.size(),
                              .num_replicas = place.world_size,
                              .rank = place.rank,
                              .seed = settings.seed});
  const auto of_epoch = static_cast<std::int64_t>(sampler.batches(kBatch).size());
  std::optional<LinearLR> warmup;
  if (settings.warmup_epochs > 0)
    warmup.emplace(*optimizer, LinearLROptions{.start_factor = 0.1,
                                               .total_iters = settings.warmup_epochs * of_epoch});

  auto loss_of_epoch = at::zeros({2}, at::kDouble);  // sum, samples
  barrier(*group);
  const auto start = monotonic_ns();
  for (std::int64_t epoch = 0; epoch < settings.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    loss_of_epoch.zero_();
    for (const auto& ids : sampler.batches(kBatch)) {
      const auto batch = take(data, ids);
      optimizer->zero_grad();
      const auto loss = torch::cross_entropy_loss(model(batch.inputs), batch.targets);
      loss.backward();
      optimizer->step();
      if (warmup) warmup->step();
      const auto count = static_cast<double>(ids.size());
      loss_of_epoch[0] += loss.item<double>() * count;
      loss_of_epoch[1] += count;
    }
  }
  barrier(*group);
  const double seconds = static_cast<double>(monotonic_ns() - start) / 1e9;
  all_reduce(*group, loss_of_epoch);
  if (place.rank == 0) {
    std::printf("%.4f %lld %.6f ", seconds, static_cast<long long>(of_epoch * settings.epochs),
                (loss_of_epoch[0] / loss_of_epoch[1]).item<double>());
    evaluate(module);
  }
  barrier(*group);
  destroy_process_group(group);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 10) {
    std::fprintf(stderr,
                 "usage: lr_scaling sgd|adam RATE WARMUP_EPOCHS SAMPLES EPOCHS SEED STORE RANK "
                 "WORLD\n");
    return lockstep::kUsage;
  }
  return lockstep::launch::guarded([&] {
    const lockstep::Settings settings{.optimizer = argv[1],
                                      .rate = std::stod(argv[2]),
                                      .warmup_epochs = std::stoll(argv[3]),
                                      .samples = std::stoll(argv[4]),
                                      .epochs = std::stoll(argv[5]),
                                      .seed = std::stoull(argv[6])};
    lockstep::InitOptions place;
    place.init_method = std::string("file://") + argv[7];
    place.rank = place.local_rank = std::stoi(argv[8]);
    place.world_size = std::stoi(argv[9]);
    lockstep::run(settings, place);
  });
}
