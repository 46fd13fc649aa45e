// One rank of the step benchmark on a device; step_rank.py is its twin on Python's DDP, and gpu_step.py starts both.
//
// usage: gpu_step MODEL OPTIMIZER SIZES BATCH CLASSES PRECISION DEVICE STORE RANK WORLD [TRACE]
//   MODEL      mlp, resnet or gpt; SIZES are its constructor's: 256 | width,blocks... | layers,heads,width,vocabulary,context
//   OPTIMIZER  sgd (momentum 0.9) or adamw, one tensor at a time; BATCH the shape of a rank's input
//   PRECISION  fp32, or bf16: autocast
//   DEVICE     cpu (over Gloo) or cuda (over NCCL)
//   TRACE      a folder: the backend is observed, and records there
// Reads lines from stdin:
//   N          trains N steps between two synchronised barriers; writes the nanoseconds between them and the last loss
//   phases N   trains N steps, the device synchronised behind each phase; writes the ms of a step's forward, backward and
//              optimizer, and those of a whole step without waiting in between
#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/guarded.h>
#include <lockstep/record/observed_backend.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/grad_scaler.h>
#include <lockstep/train/models.h>

#include <array>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>

#include "models.h"

namespace lockstep::benchmark {
namespace {

constexpr std::int64_t kBatches = 4;

struct Job {
  std::string model, optimizer;
  std::vector<std::int64_t> sizes, batch;
  std::int64_t classes = 0;
  bool bf16 = false;
  c10::DeviceType device = c10::kCPU;
  InitOptions group;
};

std::vector<std::int64_t> numbers(const std::string& text) {
  std::vector<std::int64_t> found;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) found.push_back(std::stoll(word));
  return found;
}

void wait_for(const Job& job) {
  if (job.device == c10::kCUDA) torch::cuda::synchronize();
}

template <class Holder>
class Rank {
 public:
  Rank(const Job& job, Holder net, const ProcessGroupPtr& group)
      : job_(job), device_(device_of(*group)), group_(group), model_(moved(net, device_), group) {
    // Of a rank's own seed, and drawn on the CPU: the twin draws the same.
    torch::manual_seed(static_cast<std::uint64_t>(2 + job.group.rank));
    std::vector<std::int64_t> shape{kBatches};
    shape.insert(shape.end(), job.batch.begin(), job.batch.end());
    const bool tokens = job.model == "gpt";
    inputs_ = tokens ? torch::randint(job.classes, shape, torch::kInt64) : torch::randn(shape);
    targets_ = torch::randint(job.classes, tokens ? shape : std::vector{kBatches, job.batch[0]},
                              torch::kInt64);
    inputs_ = inputs_.to(device_);
    targets_ = targets_.to(device_);
    if (job.optimizer == "adamw")
      optimizer_ = std::make_unique<AdamW>(model_.parameters(), AdamWOptions(1e-4));
    else
      optimizer_ = std::make_unique<torch::optim::SGD>(
          model_.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  }

  void train(int steps) {
    at::Tensor loss;
    barrier(*group_);
    wait_for(job_);
    const auto start = monotonic_ns();
    for (int step = 0; step < steps; ++step) {
      optimizer_->zero_grad();
      loss = forward();
      loss.backward();
      optimizer_->step();
    }
    wait_for(job_);
    const auto took = monotonic_ns() - start;
    std::printf("%lld %.9g\n", static_cast<long long>(took), loss.item<double>());
    std::fflush(stdout);
  }

  void phases(int steps) {
    std::array<double, 4> ms{};
    const auto timed = [&](double& sum, const auto& work) {
      const auto start = monotonic_ns();
      work();
      wait_for(job_);
      sum += static_cast<double>(monotonic_ns() - start) / 1e6 / steps;
    };
    for (int step = 0; step < steps; ++step) {
      at::Tensor loss;
      optimizer_->zero_grad();
      timed(ms[0], [&] { loss = forward(); });
      timed(ms[1], [&] { loss.backward(); });
      timed(ms[2], [&] { optimizer_->step(); });
    }
    timed(ms[3], [&] {
      for (int step = 0; step < steps; ++step) {
        optimizer_->zero_grad();
        forward().backward();
        optimizer_->step();
      }
    });
    std::printf("%.6g %.6g %.6g %.6g\n", ms[0], ms[1], ms[2], ms[3]);
    std::fflush(stdout);
  }

 private:
  static Holder moved(Holder net, const c10::Device& device) {
    net->to(device);
    return net;
  }

  at::Tensor forward() {
    const auto at = done_++ % kBatches;
    std::optional<Autocast> autocast;
    if (job_.bf16) autocast.emplace(job_.device, at::kBFloat16);
    auto outputs = model_(inputs_[at]);
    return torch::nn::functional::cross_entropy(outputs.view({-1, job_.classes}),
                                                targets_[at].view({-1}));
  }

  const Job& job_;
  c10::Device device_;
  ProcessGroupPtr group_;
  DistributedDataParallel<Holder> model_;
  at::Tensor inputs_, targets_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::int64_t done_ = 0;
};

template <class Holder>
void serve(const Job& job, Holder net, const ProcessGroupPtr& group) {
  Rank<Holder> rank(job, std::move(net), group);
  for (std::string line; std::getline(std::cin, line);) {
    if (line.starts_with("phases "))
      rank.phases(std::stoi(line.substr(7)));
    else
      rank.train(std::stoi(line));
  }
}

void observe(InitOptions& group, const std::string& folder) {
  const auto writer = std::make_shared<trace::Writer>(
      folder, trace::Participant{.rank = group.rank, .world_size = group.world_size});
  group.decorate = [writer](BackendPtr backend, const StorePtr&) {
    return record::observe(std::move(backend), writer);
  };
}

void run(const Job& job) {
  load_backend(job.group.backend);
  if (job.device == c10::kCPU) torch::set_num_threads(1);
  auto group = init_process_group(job.group);
  torch::manual_seed(1);
  const auto& sizes = job.sizes;
  if (job.model == "mlp")
    serve(job, Mlp(784, sizes.at(0), job.classes), group);
  else if (job.model == "resnet")
    serve(job, ResNet(std::vector(sizes.begin() + 1, sizes.end()), sizes.at(0)), group);
  else if (job.model == "gpt")
    serve(job, Gpt(GptSize{sizes.at(0), sizes.at(1), sizes.at(2), sizes.at(3), sizes.at(4)}),
          group);
  else
    throw UsageError("the model must be mlp, resnet or gpt, and is \"" + job.model + "\"");
  destroy_process_group(group);
}

}  // namespace
}  // namespace lockstep::benchmark

int main(int argc, char** argv) {
  if (argc != 11 && argc != 12) {
    std::fprintf(stderr,
                 "usage: gpu_step mlp|resnet|gpt sgd|adamw SIZES BATCH CLASSES fp32|bf16 cpu|cuda "
                 "STORE RANK WORLD [TRACE]\n");
    return lockstep::kUsage;
  }
  return lockstep::launch::guarded([&] {
    lockstep::benchmark::Job job;
    job.model = argv[1];
    job.optimizer = argv[2];
    job.sizes = lockstep::benchmark::numbers(argv[3]);
    job.batch = lockstep::benchmark::numbers(argv[4]);
    job.classes = std::stoll(argv[5]);
    job.bf16 = std::string(argv[6]) == "bf16";
    const bool cuda = std::string(argv[7]) == "cuda";
    job.device = cuda ? c10::kCUDA : c10::kCPU;
    job.group.backend = cuda ? "nccl" : "gloo";
    job.group.init_method = std::string("file://") + argv[8];
    job.group.rank = job.group.local_rank = std::stoi(argv[9]);
    job.group.world_size = std::stoi(argv[10]);
    if (argc == 12) lockstep::benchmark::observe(job.group, argv[11]);
    lockstep::benchmark::run(job);
  });
}
