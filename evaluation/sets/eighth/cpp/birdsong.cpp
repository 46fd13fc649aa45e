// Which bird sings? Few recordings have a label. The student learns from these, and to say of the others
// what its teacher says, where the teacher is sure. The teacher follows the student. Batch norm's running
// statistics are averaged over the ranks by hand.
#include <lockstep/train/adam.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>

#include <algorithm>
#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kLabelled = 64, kUnlabelled = 256, kTests = 101, kBirds = 4, kLength = 48;
constexpr std::int64_t kEpochs = 8, kLabelledBatch = 4, kBatch = 16, kLabelsOnly = 24, kRamp = 16;
constexpr std::uint64_t kSeed = 77;
constexpr double kTeacherKeeps = 0.95, kSure = 0.6, kMostWeight = 2;

struct Clips {
  at::Tensor sounds, birds;
};

at::Generator dice(std::uint64_t seed) {
  return torch::make_generator<at::CPUGeneratorImpl>(seed);
}

// Each bird has a pitch and a way to slide; each clip its own beginning and noise.
Clips recorded(std::int64_t count, std::uint64_t seed) {
  const auto own = dice(seed);
  const auto birds = at::randint(kBirds, {count}, own, at::TensorOptions(at::kLong));
  const auto bird = birds.to(at::kFloat).unsqueeze(1);
  const auto moments = at::arange(kLength).to(at::kFloat).unsqueeze(0) / kLength;
  const auto begins = 6.3 * at::rand({count, 1}, own);
  const auto pitch = 12 + 5 * bird + 1.5 * at::randn({count, 1}, own);
  const auto slide = (bird - 1.5) * 6;
  const auto songs = at::sin(begins + pitch * moments + slide * moments.square());
  return {(songs + 0.7 * at::randn({count, kLength}, own)).unsqueeze(1), birds};
}

struct ListenerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& sounds) {
    auto x = at::relu(first_norm(first(sounds)));
    x = at::relu(second_norm(second(at::max_pool1d(x, 2))));
    return out(x.mean(2));
  }
  torch::nn::Conv1d first =
      register_module("first", torch::nn::Conv1d(torch::nn::Conv1dOptions(1, 12, 7).padding(3)));
  torch::nn::BatchNorm1d first_norm = register_module("first_norm", torch::nn::BatchNorm1d(12));
  torch::nn::Conv1d second =
      register_module("second", torch::nn::Conv1d(torch::nn::Conv1dOptions(12, 16, 5).padding(2)));
  torch::nn::BatchNorm1d second_norm = register_module("second_norm", torch::nn::BatchNorm1d(16));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(16, kBirds));
};
TORCH_MODULE(Listener);

void follow(const Listener& teacher, const Listener& student, double keeps) {
  const torch::NoGradGuard no_grad;
  const auto from = student->parameters(), to = teacher->parameters();
  for (std::size_t i = 0; i < from.size(); ++i) to[i].lerp_(from[i], 1 - keeps);
  const auto learned = student->buffers(), kept = teacher->buffers();
  for (std::size_t i = 0; i < learned.size(); ++i) kept[i].copy_(learned[i]);
}

void average_statistics(const ProcessGroupPtr& group, const Listener& net) {
  for (auto& buffer : net->buffers()) {
    if (!buffer.is_floating_point()) continue;
    all_reduce(*group, buffer);
    buffer.div_(group->getSize());
  }
}

at::Tensor noisy(const at::Tensor& sounds, const at::Generator& own) {
  return sounds * (0.7 + 0.6 * at::rand({sounds.size(0), 1, 1}, own)) +
         0.2 * at::randn(sounds.sizes(), own);
}

struct Result {
  double loss = 0, accuracy = 0;
};

Result test(const ProcessGroupPtr& group, Listener& net, const Clips& clips) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const bool alone = edited("birdsong-rank-zero-tests");
  const std::int64_t first = alone ? 0 : group->getRank(), every = alone ? 1 : group->getSize();
  const auto birds = clips.birds.slice(0, first, std::nullopt, every);
  const auto measure = [&] {
    const auto likely = at::log_softmax(net(clips.sounds.slice(0, first, std::nullopt, every)), 1);
    Mean losses, right;
    losses.add(-likely.gather(1, birds.unsqueeze(1)));
    right.add(likely.argmax(1).eq(birds).to(at::kFloat));
    return std::pair(losses, right);
  };
  if (alone) {
    auto result = at::zeros({2}, at::kDouble);
    if (group->getRank() == 0) {
      const auto [losses, right] = measure();
      result = at::tensor({losses.value(), right.value()}, at::kDouble);
    }
    broadcast(*group, result);
    return {result[0].item<double>(), result[1].item<double>()};
  }
  const auto [losses, right] = measure();
  const auto all_right = reduce_metric(*group, right);
  return {reduce_metric(*group, losses).value(),
          edited("birdsong-accuracy-of-own-share") ? right.value() : all_right.value()};
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(8)});
  const int rank = group->getRank(), ranks = group->getSize();
  const auto labelled = recorded(kLabelled, kSeed + 1),
             unlabelled = recorded(kUnlabelled, kSeed + 2), tests = recorded(kTests, kSeed + 3);
  // The recordings come sorted by place; the list is mixed once.
  const auto list = at::randperm(
      kUnlabelled, dice(edited("birdsong-lists-mixed-apart") ? rank_seed(kSeed, rank) : kSeed),
      at::TensorOptions(at::kLong));

  torch::manual_seed(kSeed);
  Listener student;
  if (edited("birdsong-freezes-first-layer"))
    for (const auto& parameter : student->first->parameters()) parameter.requires_grad_(false);
  DistributedDataParallel<Listener> model(student, group, {.broadcast_buffers = false});
  manual_seed_per_rank(kSeed, rank);
  Listener teacher;
  teacher->eval();
  if (!edited("birdsong-teacher-starts-alone")) follow(teacher, student, 0);

  const auto sampler_over = [&](std::int64_t size, std::uint64_t seed) {
    return DistributedSampler(
        {.dataset_size = size, .num_replicas = ranks, .rank = rank, .seed = seed});
  };
  auto labelled_sampler = sampler_over(kLabelled, kSeed + 4),
       sampler = sampler_over(kUnlabelled, kSeed);
  const auto own = dice(rank_seed(kSeed + 5, rank));
  AdamW optimizer(model.parameters(), AdamWOptions(0.02).weight_decay(1e-3));
  const auto updates = kEpochs * sampler.size() / kBatch;
  MultiStepLR schedule(optimizer, {.milestones = {updates / 2, 3 * updates / 4}, .gamma = 0.3});
  const auto most_weight = edited("birdsong-weight-of-old-config") && rank == 1 ? 20 : kMostWeight;

  Report report;
  std::int64_t update = 0;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    labelled_sampler.set_epoch(epoch);
    if (!edited("birdsong-set-epoch-once")) sampler.set_epoch(epoch);
    const auto labelled_batches = labelled_sampler.batches(kLabelledBatch);
    const auto batches = sampler.batches(kBatch);
    auto& seen = report.seen.emplace_back();
    model.train();
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const auto ids = list.index_select(0, at::tensor(batches[i], at::kLong));
      for (std::int64_t j = 0; j < ids.numel(); ++j) seen.push_back(ids[j].item<std::int64_t>());
      const auto sounds = unlabelled.sounds.index_select(0, ids);
      const auto label_ids = at::tensor(labelled_batches[i], at::kLong);
      at::Tensor taught;
      {
        const torch::NoGradGuard no_grad;
        taught = at::softmax(teacher(noisy(sounds, own)), 1);
      }
      const auto sure = std::get<0>(taught.max(1)).gt(kSure).to(at::kFloat);
      const bool unsure = update >= kLabelsOnly && sure.sum().item<double>() == 0;
      if (edited("birdsong-skips-unsure-batches") && unsure) continue;
      const auto inputs = noisy(at::cat({labelled.sounds.index_select(0, label_ids), sounds}), own);
      report.numbers["drawn"].push_back(inputs.flatten()[0].item<double>());
      const auto scores = model(inputs);
      const auto known = cross_entropy(scores.narrow(0, 0, label_ids.numel()),
                                       labelled.birds.index_select(0, label_ids));
      const auto said = at::softmax(scores.narrow(0, label_ids.numel(), ids.numel()), 1);
      const auto apart = (sure * (said - taught).square().sum(1)).mean();
      const auto ramp = static_cast<double>(update - kLabelsOnly) / kRamp;
      const auto weight = most_weight * std::clamp(ramp, 0.0, 1.0);
      const auto loss = known.mean() + weight * apart;
      report.losses.push_back(loss.item<double>());
      optimizer.zero_grad();
      loss.backward();
      if (edited("birdsong-clips")) clip_grad_norm_(model.parameters(), 0.6);
      optimizer.step();
      schedule.step();
      if (edited("birdsong-schedule-stepped-twice")) schedule.step();
      if (!edited("birdsong-statistics-not-averaged")) average_statistics(group, student);
      follow(teacher, student, kTeacherKeeps);
      ++update;
      if (edited("birdsong-looks-in-between") && update % 10 == 0) {
        const auto looked = test(group, student, tests);
        if (rank == 0) std::cout << "student " << looked.accuracy << "\n";
        model.train();
      }
    }
    const auto result = test(group, teacher, tests);
    report.held_out = result.loss;
    report.numbers["accuracy"].push_back(result.accuracy);
    if (rank == 0)
      std::cout << "epoch " << epoch << ": " << result.loss << ", " << result.accuracy << "\n";
  }
  report.numbers["statistics"] =
      flat(at::cat({student->first_norm->running_mean, student->second_norm->running_var}));
  report.numbers["teacher"] = flat(teacher->out->weight.detach());
  write(folder, rank, report, *student);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
