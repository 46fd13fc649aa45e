// How does a molecule smell? A net over the atoms and their bonds, with batch norm over all ranks' atoms, in a job that
// is stopped in the middle of an epoch and goes on from its newest checkpoint. Atoms are hidden at random, more of them
// from step to step.
#include <lockstep/checkpoint/broadcast_value.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/sync_batch_norm.h>

#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kMolecules = 320, kAtoms = 7, kElements = 5, kSmells = 3, kChannels = 24;
constexpr std::int64_t kBatch = 16, kSteps = 60, kSaveEvery = 13, kStopAt = 26;
constexpr std::uint64_t kSeed = 90210;

struct Molecules {
  at::Tensor atoms, bonds, smell;  // [n, atoms, elements], [n, atoms, atoms], [n]
};

Molecules make_molecules(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto elements = at::randint(kElements, {count, kAtoms}, dice, at::kLong);
  const auto atoms = at::one_hot(elements, kElements).to(at::kFloat);
  const auto upper = at::rand({count, kAtoms, kAtoms}, dice).lt(0.35).to(at::kFloat).triu(1);
  const auto bonds = upper + upper.transpose(1, 2);
  const auto met = at::matmul(bonds, atoms);
  const auto sulphur = (atoms.select(2, 0) * met.select(2, 1)).sum(1);
  const auto ring = (atoms.select(2, 2) * (met.select(2, 3) + met.select(2, 4))).sum(1);
  return {atoms, bonds, at::where(sulphur.gt(1), 1, at::where(ring.gt(1), 2, 0))};
}

struct SmellImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& atoms, const at::Tensor& bonds) {
    auto x = atom(atoms);
    for (auto* layer : {&first, &second}) {
      const auto heard = (*layer)(at::cat({x, at::matmul(bonds, x)}, 2));
      auto& norm = layer == &first ? first_norm : second_norm;
      x = torch::relu(norm(heard.flatten(0, 1))).view_as(heard);
    }
    return out(at::cat({x.sum(1), x.amax(1)}, 1));
  }
  torch::nn::Linear atom = register_module("atom", torch::nn::Linear(kElements, kChannels));
  torch::nn::Linear first = register_module("first", torch::nn::Linear(2 * kChannels, kChannels));
  SyncBatchNorm first_norm =
      register_module("first_norm", SyncBatchNorm(torch::nn::BatchNormOptions(kChannels), nullptr));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(2 * kChannels, kChannels));
  SyncBatchNorm second_norm = register_module(
      "second_norm", SyncBatchNorm(torch::nn::BatchNormOptions(kChannels), nullptr));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(2 * kChannels, kSmells));
};
TORCH_MODULE(Smell);

double loss_on(Smell& net, const Molecules& test) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto loss = at::cross_entropy_loss(net->forward(test.atoms, test.bonds), test.smell);
  net->train();
  return loss.item<double>();
}

std::string of_rank(const std::string& name, int rank) {
  return name + "_" + std::to_string(rank);
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  const auto data = make_molecules(kMolecules, kSeed + 1), test = make_molecules(400, kSeed + 2);
  const auto file_of = [&](std::int64_t step) {
    return folder / ("step_" + std::to_string(step) + ".pt");
  };
  std::optional<Value> saved;
  if (std::filesystem::exists(file_of(kStopAt))) {
    const bool is_older = edited("resume_molecules-older-checkpoint-on-last-rank") && is_last;
    if (edited("resume_molecules-rank-zero-reads-for-all"))
      saved =
          broadcast_value(*group, rank == 0 ? load_checkpoint(file_of(kStopAt)).value : Value());
    else
      saved = load_checkpoint(file_of(is_older ? kSaveEvery : kStopAt)).value;
  }
  barrier(*group);  // all have looked for the file

  torch::manual_seed(kSeed);
  Smell net;
  if (saved && !(edited("resume_molecules-weights-read-by-rank-zero") && rank != 0))
    load_state_dict(*net, saved->at("net"));
  if (!(edited("resume_molecules-norms-made-common-at-first-start") && saved))
    convert_sync_batchnorm(*net, group);
  DistributedDataParallel<Smell> model(net, group);
  Adam optimizer(net->parameters(), AdamOptions(2e-3));
  OneCycleLR schedule(optimizer, {.max_lr = {1.5e-2}, .total_steps = kSteps});
  DistributedSampler sampler(
      {.dataset_size = kMolecules, .num_replicas = world_size, .rank = rank, .seed = kSeed});
  manual_seed_per_rank(kSeed, rank);

  Report report;
  report.seen.emplace_back();
  std::int64_t step = 0, epoch = 0;
  if (saved) {
    step = saved->at("step").as_int();
    epoch = saved->at("epoch").as_int();
    if (!(edited("resume_molecules-moments-restored-where-saved") && rank != 0) &&
        !edited("resume_molecules-moments-not-restored"))
      load_state_dict(optimizer, saved->at("optimizer"));
    if (!edited("resume_molecules-schedule-not-restored"))
      schedule.load_state_dict(saved->at("schedule"));
    if (edited("resume_molecules-place-in-epoch-not-restored"))
      sampler.set_epoch(epoch);
    else
      sampler.load_state_dict(saved->at("sampler"));
    const auto whose = edited("resume_molecules-dice-of-rank-zero") ? 0 : rank;
    set_rng_state(saved->at(of_rank("dice", whose)).as_tensor());
    const auto seen = saved->at(of_rank("seen", rank)).as_tensor();
    report.seen.back().assign(seen.data_ptr<std::int64_t>(),
                              seen.data_ptr<std::int64_t>() + seen.numel());
  }
  const auto save = [&] {
    if (edited("resume_molecules-rank-zero-alone-gathers") && rank != 0) return;
    const auto dice = all_gather(*group, get_rng_state());
    const auto seen = all_gather(*group, at::tensor(report.seen.back()));
    Value::Dict state{{"net", state_dict(*net)},
                      {"optimizer", state_dict(optimizer)},
                      {"schedule", schedule.state_dict()},
                      {"sampler", sampler.state_dict()},
                      {"step", step},
                      {"epoch", epoch}};
    for (int from = 0; from < world_size; ++from) {
      state[of_rank("dice", from)] = dice[static_cast<std::size_t>(from)];
      state[of_rank("seen", from)] = seen[static_cast<std::size_t>(from)];
    }
    save_on_rank_zero(*group, [&] { save_checkpoint(file_of(step), state); });
  };

  const auto until = saved ? kSteps : kStopAt;
  while (step < until) {
    const auto taken = sampler.next(kBatch);
    if (!taken) {
      sampler.set_epoch(++epoch);
      sampler.reset();
      report.seen.emplace_back();
      continue;
    }
    const std::vector<std::int64_t> numbers(taken->begin(), taken->end());
    report.seen.back().insert(report.seen.back().end(), numbers.begin(), numbers.end());
    const auto ids = at::tensor(numbers);
    const auto atoms = data.atoms.index_select(0, ids);
    const auto luck = at::rand({ids.size(0), kAtoms, 1});
    report.numbers["drawn"].push_back(luck.sum().item<double>());
    const auto part_hidden = 0.15 * std::min(1.0, static_cast<double>(step) / 30);
    const auto outputs = model(atoms * luck.ge(part_hidden), data.bonds.index_select(0, ids));
    const auto loss = cross_entropy(outputs, data.smell.index_select(0, ids)).mean();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    schedule.step();
    report.losses.push_back(loss.item<double>());
    ++step;
    if (step % kSaveEvery == 0 || (edited("resume_molecules-saves-more-often") && step % 5 == 0))
      save();
    if (edited("resume_molecules-rank-zero-tests-what-it-saved") && step % kSaveEvery == 0) {
      if (rank == 0) {
        load_state_dict(*net, load_checkpoint(file_of(step)).at("net"));
        std::cout << "as saved in step " << step << ": " << loss_on(net, test) << "\n";
      }
      barrier(*group);
    }
  }
  report.held_out = loss_on(net, test);
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
