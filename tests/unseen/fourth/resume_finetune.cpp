// Fine-tunes a trunk that was trained for something else: its first layer stays as it is, its second one is thawed
// after two epochs. A start trains half of the epochs at most; the next one goes on from the newest file.
#include <lockstep/checkpoint/broadcast_value.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>

#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kSamples = 480, kTestSamples = 200, kInputs = 16, kWidth = 40, kClasses = 6;
constexpr std::int64_t kBatch = 20, kEpochs = 8, kHalf = 4, kThaw = 2;
constexpr std::uint64_t kSeed = 601;

struct TrunkImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& inputs) {
    const auto seen = at::tanh(first(inputs));
    return at::tanh(second(edited("finetune-detaches-first-layer") ? seen.detach() : seen));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(kInputs, kWidth));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(kWidth, kWidth));
};
TORCH_MODULE(Trunk);

struct ClassifierImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& inputs) { return head(drop(trunk(inputs))); }
  Trunk trunk = register_module("trunk", Trunk());
  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(0.1));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kWidth, kClasses));
};
TORCH_MODULE(Classifier);

void freeze(torch::nn::Linear& layer, bool frozen) {
  for (auto& parameter : layer->parameters()) parameter.set_requires_grad(!frozen);
}

// What made the data; the trunk that is fine-tuned is near to it.
Classifier make_teacher() {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(kSeed);
  Classifier teacher;
  for (auto& parameter : teacher->parameters()) parameter.mul_(3);
  teacher->eval();
  return teacher;
}

Value trunk_of(Classifier& teacher) {
  const torch::NoGradGuard no_grad;
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(kSeed + 1);
  Trunk trunk;
  load_state_dict(*trunk, state_dict(*teacher->trunk));
  for (auto& parameter : trunk->parameters())
    parameter.add_(at::randn(parameter.sizes(), dice), 0.1);
  return state_dict(*trunk);
}

using Samples = std::pair<at::Tensor, at::Tensor>;

Samples make_samples(Classifier& teacher, std::int64_t count, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto inputs = at::randn({count, kInputs}, dice);
  return {inputs, teacher->forward(inputs).argmax(1)};
}

double evaluate(const ProcessGroupPtr& group, Classifier& net, const Samples& test) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto rank = group->getRank(), world_size = group->getSize();
  const auto said = net->forward(test.first.slice(0, rank, c10::nullopt, world_size));
  const auto right = test.second.slice(0, rank, c10::nullopt, world_size);
  Mean loss;
  loss.add(at::cross_entropy_loss(said, right, {}, at::Reduction::None));
  net->train();
  return reduce_metric(*group, loss).value();
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  auto teacher = make_teacher();
  const auto samples = make_samples(teacher, kSamples, kSeed + 2),
             test = make_samples(teacher, kTestSamples, kSeed + 3);
  const auto trunk_file = folder / "trunk.pt";
  save_on_rank_zero(*group, [&] { save_checkpoint(trunk_file, trunk_of(teacher)); });

  // Where training goes on, by the files that rank 0 sees.
  const auto file_of = [&](std::int64_t epoch) {
    return folder / ("epoch_" + std::to_string(epoch) + ".pt");
  };
  auto newest = at::full({1}, -1, at::kLong);
  for (std::int64_t epoch = 0; rank == 0 && epoch < kEpochs; ++epoch)
    if (std::filesystem::exists(file_of(epoch))) newest.fill_(epoch);
  broadcast(*group, newest);
  const auto first_epoch = newest.item<std::int64_t>() + 1;
  const bool goes_on = first_epoch > 0;

  torch::manual_seed(kSeed + 4);
  Classifier net;
  const auto pretrained = load_checkpoint(trunk_file).value;
  if (edited("finetune-trunk-keys-do-not-fit"))
    load_state_dict(*net, pretrained, {.strict = false});
  else
    load_state_dict(*net->trunk, pretrained);
  freeze(net->trunk->first, !(edited("finetune-last-rank-freezes-less") && is_last));
  freeze(net->trunk->second, first_epoch <= kThaw);
  auto model = std::make_unique<DistributedDataParallel<Classifier>>(net, group);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net->head->parameters(), std::make_unique<AdamOptions>(2e-2));
  groups.emplace_back(net->trunk->second->parameters(), std::make_unique<AdamOptions>(4e-3));
  Adam optimizer(groups);
  DistributedSampler sampler(
      {.dataset_size = kSamples, .num_replicas = world_size, .rank = rank, .seed = kSeed});
  const auto batch = edited("finetune-smaller-batches") ? kBatch - 4 : kBatch;
  CosineAnnealingLR schedule(optimizer, {.T_max = kEpochs * (sampler.size() / batch)});
  manual_seed_per_rank(kSeed, rank);
  if (goes_on) {
    const bool late = edited("finetune-last-rank-goes-on-from-older-file") && is_last;
    const auto file = file_of(first_epoch - (late ? 2 : 1));
    const bool sends = edited("finetune-state-is-broadcast");
    auto state = sends && rank != 0 ? Value() : load_checkpoint(file).value;
    if (sends) state = broadcast_value(*group, state);
    load_state_dict(*net, state.at("model"));
    load_state_dict(optimizer, state.at("optimizer"));
    if (!edited("finetune-schedule-begins-anew")) schedule.load_state_dict(state.at("schedule"));
    const auto of_rank = edited("finetune-dice-of-rank-zero") ? 0 : rank;
    set_rng_state(state.at("dice").as_list()[static_cast<std::size_t>(of_rank)].as_tensor());
  }

  Report report;
  auto end = goes_on ? kEpochs : kHalf;
  if (edited("finetune-less-time-on-last-rank") && is_last && !goes_on) end = kHalf - 1;
  for (auto epoch = first_epoch; epoch < end; ++epoch) {
    if (epoch == kThaw) {
      freeze(net->trunk->second, false);
      if (!edited("finetune-thaws-behind-the-wrapper"))
        model = std::make_unique<DistributedDataParallel<Classifier>>(net, group);
    }
    sampler.set_epoch(epoch);
    report.seen.push_back(sampler.indices());
    for (const auto& ids : sampler.batches(batch)) {
      const auto rows = at::tensor(ids);
      const auto inputs = samples.first.index_select(0, rows),
                 noise = 0.1 * at::randn(inputs.sizes());
      report.numbers["drawn"].push_back(noise.sum().item<double>());
      optimizer.zero_grad();
      if (edited("finetune-clips-before-backward")) clip_grad_norm_(net->parameters(), 0.5);
      const auto loss =
          cross_entropy((*model)(inputs + noise), samples.second.index_select(0, rows)).mean();
      loss.backward();
      if (!edited("finetune-clips-before-backward")) clip_grad_norm_(net->parameters(), 0.5);
      optimizer.step();
      schedule.step();
      report.losses.push_back(loss.item<double>());
    }
    report.held_out = evaluate(group, net, test);
    if (rank == 0) std::cout << "epoch " << epoch << ": held out " << report.held_out << "\n";
    if (edited("finetune-saves-at-the-end") && epoch + 1 < end) continue;
    Value::List dice;
    for (const auto& state : all_gather(*group, get_rng_state())) dice.push_back(state);
    save_on_rank_zero(*group, [&] {
      save_checkpoint(file_of(epoch), Value::Dict{{"model", state_dict(*net)},
                                                  {"optimizer", state_dict(optimizer)},
                                                  {"schedule", schedule.state_dict()},
                                                  {"dice", dice}});
    });
  }
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
