// What a silent fault costs: small trainings on Fashion-MNIST in the correct variant and with one fault, the same
// seed for both. A setting is one training program; each of its faults is switched in one place of it.
#pragma once

#include <lockstep/dist/process_group.h>
#include <lockstep/train/dataset.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::silence {

using Ids = std::vector<std::int64_t>;
using Batches = std::vector<Ids>;

// Asked by its slug at the one place where it is switched; the correct variant has none.
class Fault {
 public:
  explicit Fault(std::string slug) : slug_(std::move(slug)) {}
  bool operator()(std::string_view slug) const { return slug_ == slug; }

 private:
  std::string slug_;
};

// One training, as every rank sees it. The global generator has been seeded with `seed`, on all ranks alike.
struct Job {
  ProcessGroupPtr group;
  ProcessGroupPtr seam;  // a second group of the same ranks, to order them where a fault is a race
  std::filesystem::path folder;  // of all ranks, empty, for checkpoints
  std::uint64_t seed = 0;
  TensorData train;         // this seed's own samples: no other seed has them
  TensorData unused;        // a quarter as many, which correct variants do not train on
  TensorData test;          // the whole test set
  std::int64_t batch = 32;  // of a rank
  std::int64_t epochs = 6;
  double rate = 0.2;  // SGD's at the global batch

  int rank() const { return group->getRank(); }
  int world_size() const { return group->getSize(); }
  std::int64_t updates_of_epoch() const { return train.size() / (batch * world_size()); }
  std::int64_t updates() const { return epochs * updates_of_epoch(); }
  DistributedSamplerOptions sampler() const {
    return {
        .dataset_size = train.size(), .num_replicas = world_size(), .rank = rank(), .seed = seed};
  }
};

struct Setting {
  std::string name;
  std::vector<std::string> faults;
  // Collective. What this rank measures, 0 to 1: its own model's accuracy on the whole test set or, where the
  // fault is in the figure, the figure.
  std::function<double(const Job&, const Fault&)> train;
};

std::vector<Setting> settings();

std::vector<Setting> wrapper_settings();
std::vector<Setting> by_hand_settings();
std::vector<Setting> sharding_settings();
std::vector<Setting> uneven_settings();
std::vector<Setting> batch_norm_settings();
std::vector<Setting> resume_settings();
std::vector<Setting> schedule_settings();
std::vector<Setting> accumulation_settings();
std::vector<Setting> clipping_settings();
std::vector<Setting> augmentation_settings();
std::vector<Setting> metrics_settings();

using EpochOf = std::function<Batches(std::int64_t epoch)>;

// Goes through epochs until `updates` batches were trained on, however many an epoch has: every variant of a
// setting trains on as many batches of as many samples.
void for_updates(std::int64_t updates, const EpochOf& batches_of,
                 const std::function<void(const Ids&)>& step);

// The sampler's epochs, without the last, smaller batch.
EpochOf epochs_of(DistributedSampler sampler, std::int64_t batch);
EpochOf shuffled(const Job& job);  // of the job's own sampler and batch

// Plain SGD whose rate falls to 0 as a cosine: the last weights are then no draw from a wide cloud, and a
// difference between two variants shows with few seeds.
struct DecayingSgd {
  DecayingSgd(std::vector<at::Tensor> parameters, double rate, std::int64_t updates)
      : optimizer(std::move(parameters), rate), schedule(optimizer, {.T_max = updates}) {}
  void step() {
    optimizer.step();
    schedule.step();
  }
  SGD optimizer;
  CosineAnnealingLR schedule;
};

// The articles' model, smaller. Weights from the global generator.
inline Mlp make_model() {
  return Mlp(784, 64, 10);
}

at::Tensor mean_loss(const at::Tensor& outputs, const at::Tensor& targets);

// Trains through DDP, with DecayingSgd, on what `loss_of` makes of the wrapped model and each batch.
using LossOf = std::function<at::Tensor(DistributedDataParallel<Mlp>& model, const Ids&)>;
void train_ddp(const Job& job, Mlp& net, const EpochOf& batches_of, const LossOf& loss_of);
// A new model, so trained on the mean loss; its replica.
Mlp trained(const Job& job, const TensorData& data, const EpochOf& batches_of);

// All gradients in one vector, and back.
at::Tensor flat_gradients(const torch::nn::Module& module);
void set_gradients(torch::nn::Module& module, const at::Tensor& flat);

// Share of the samples whose class has the largest output.
double share_right(const at::Tensor& outputs, const at::Tensor& targets);

template <class Holder>
double accuracy(Holder& model, const TensorData& test) {
  const torch::NoGradGuard no_grad;
  model->eval();
  const double result = share_right(model->forward(test.inputs), test.targets);
  model->train();
  return result;
}

}  // namespace lockstep::silence
