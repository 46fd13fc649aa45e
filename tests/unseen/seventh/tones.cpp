// Which instrument plays? A large teacher learns it first; a small student then learns from the
// teacher's softened answers and from the labels. Each host keeps a copy of the teacher on its disk.
// Batch norms see a rank's own batch; their running statistics are averaged before they are used.
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/model_state.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/watched.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kTones = 256, kTestTones = 120, kPoints = 40, kInstruments = 6, kBatch = 16;
constexpr std::int64_t kTeacherEpochs = 6, kStudentEpochs = 7;
constexpr double kTemperature = 3, kOfTeacher = 0.7;

struct Tones {
  at::Tensor waves, instruments;
  Tones at(const at::Tensor& ids) const {
    return {waves.index_select(0, ids), instruments.index_select(0, ids)};
  }
};

// An instrument has its own overtones; pitch, phase and noise vary.
Tones record_tones(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto instruments = at::randint(kInstruments, {count}, dice, at::kLong);
  const auto pitch = 1 + 0.3 * at::rand({count, 1}, dice), phase = 6 * at::rand({count, 1}, dice);
  const auto time = at::arange(kPoints, at::kFloat).unsqueeze(0) * 0.3;
  auto waves = 0.3 * at::randn({count, kPoints}, dice);
  for (int overtone = 1; overtone <= 4; ++overtone) {
    const auto strength = at::cos(instruments * (overtone * 1.3)).unsqueeze(1);
    waves = waves + strength * at::sin(overtone * (pitch * time + phase));
  }
  return {waves.unsqueeze(1), instruments};
}

struct ListenerImpl : torch::nn::Module {
  explicit ListenerImpl(std::int64_t width)
      : low(register_module("low", torch::nn::Conv1d(layer(1, width)))),
        high(register_module("high", torch::nn::Conv1d(layer(width, width)))),
        low_norm(register_module("low_norm", torch::nn::BatchNorm1d(width))),
        high_norm(register_module("high_norm", torch::nn::BatchNorm1d(width))),
        names(register_module("names", torch::nn::Linear(2 * width, kInstruments))) {}
  at::Tensor forward(const at::Tensor& waves) {
    const auto seen = at::relu(high_norm(high(at::relu(low_norm(low(waves))))));
    return names(at::cat({seen.amax(2), seen.mean(2)}, 1));
  }
  static torch::nn::Conv1dOptions layer(std::int64_t in, std::int64_t out) {
    return torch::nn::Conv1dOptions(in, out, 7).padding(3).stride(2).bias(false);
  }
  torch::nn::Conv1d low, high;
  torch::nn::BatchNorm1d low_norm, high_norm;
  torch::nn::Linear names;
};
TORCH_MODULE(Listener);

void average_statistics(const ProcessGroupPtr& group, Listener& net) {
  for (auto& buffer : net->buffers()) {
    if (!buffer.is_floating_point()) continue;
    all_reduce(*group, buffer);
    buffer.div_(group->getSize());
  }
}

// Mean loss and share of right answers over all ranks.
std::pair<double, double> test_of(const ProcessGroupPtr& group, Listener& net, const Tones& tests) {
  const torch::NoGradGuard no_grad;
  const bool trained = net->is_training();
  net->eval();
  const auto share = tests.at(at::arange(group->getRank(), kTestTones, group->getSize()));
  const auto answers = net->forward(share.waves);
  auto sums = at::stack({at::cross_entropy_loss(answers, share.instruments, {}, at::Reduction::Sum),
                         answers.argmax(1).eq(share.instruments).sum().to(at::kFloat)});
  all_reduce(*group, sums);
  net->train(trained);
  return {sums[0].item<double>() / kTestTones, sums[1].item<double>() / kTestTones};
}

at::Tensor ids_of(const std::vector<std::size_t>& taken) {
  return at::tensor(std::vector<std::int64_t>(taken.begin(), taken.end()));
}

// The teacher's state is on each host's disk when it returns.
void teach(const ProcessGroupPtr& group, const Tones& tones, const std::filesystem::path& copy) {
  const int rank = group->getRank(), world_size = group->getSize();
  Listener teacher(24);
  DistributedDataParallel<Listener> model(teacher, group, {.broadcast_buffers = false});
  AdamW optimizer(teacher->parameters(), AdamWOptions(0.004));
  DistributedSampler sampler(
      {.dataset_size = kTones, .num_replicas = world_size, .rank = rank, .seed = 11});
  for (std::int64_t epoch = 0; epoch < kTeacherEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    sampler.reset();
    while (const auto taken = sampler.next(kBatch)) {
      const auto batch = tones.at(ids_of({taken->begin(), taken->end()}));
      optimizer.zero_grad();
      at::cross_entropy_loss(model(batch.waves), batch.instruments).backward();
      optimizer.step();
    }
    average_statistics(group, teacher);
    const bool full_disk = edited("tones-older-teacher-on-last-rank") && rank == world_size - 1;
    if (!full_disk || epoch == 0) save_checkpoint(copy, state_dict(*teacher));
  }
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const std::uint64_t seed = edited("tones-other-seed") ? 92 : 91;
  const auto tones = record_tones(kTones, 5), tests = record_tones(kTestTones, 6);
  const auto copy = folder / ("teacher_" + std::to_string(rank) + ".pt");

  torch::manual_seed(static_cast<std::int64_t>(seed));
  teach(group, tones, copy);
  Listener teacher(24), student(8);
  if (edited("tones-teacher-comes-from-rank-zero")) {
    if (rank == 0) load_state_dict(*teacher, load_checkpoint(copy).value);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : teacher->parameters()) broadcast(*group, parameter, 0);
    for (auto& buffer : teacher->buffers()) broadcast(*group, buffer, 0);
  } else {
    load_state_dict(*teacher, load_checkpoint(copy).value);
  }
  if (!edited("tones-teacher-goes-on-training")) teacher->eval();
  const auto answers_to = [&](const at::Tensor& waves) {
    const torch::NoGradGuard no_grad;
    return teacher->forward(waves);
  };
  at::Tensor kept;
  if (edited("tones-answers-are-kept")) kept = answers_to(tones.waves);

  DistributedDataParallel<Listener> model(student, group, {.broadcast_buffers = false});
  const auto& learner = edited("tones-optimizer-of-the-teacher") ? teacher : student;
  Watched<torch::optim::RMSprop> optimizer(
      learner->parameters(), torch::optim::RMSpropOptions(0.006).alpha(0.95).momentum(0.5));
  LambdaLR schedule(optimizer, {.lr_lambda = {[](std::int64_t epoch) {
                                  return std::pow(0.8, static_cast<double>(epoch));
                                }}});
  const auto own = edited("tones-order-seeded-by-rank") ? static_cast<std::uint64_t>(rank) : 0;
  DistributedSampler sampler(
      {.dataset_size = kTones, .num_replicas = world_size, .rank = rank, .seed = seed + own});
  manual_seed_per_rank(seed, rank);

  Report report;
  for (std::int64_t epoch = 0; epoch < kStudentEpochs; ++epoch) {
    if (!edited("tones-epoch-not-set")) sampler.set_epoch(epoch);
    sampler.reset();
    report.seen.emplace_back();
    while (const auto taken = sampler.next(kBatch)) {
      const auto ids = ids_of({taken->begin(), taken->end()});
      report.seen.back().insert(report.seen.back().end(), taken->begin(), taken->end());
      const auto batch = tones.at(ids);
      const auto softened = kept.defined() ? kept.index_select(0, ids) : answers_to(batch.waves);
      optimizer.zero_grad();
      const auto noisy = batch.waves + 0.1 * at::randn_like(batch.waves);
      const auto found =
          edited("tones-student-called-past-ddp") ? student->forward(noisy) : model(noisy);
      const auto apart = at::kl_div(at::log_softmax(found / kTemperature, 1),
                                    at::softmax(softened / kTemperature, 1), at::Reduction::Sum);
      const auto scores = edited("tones-softmax-twice") ? at::softmax(found, 1) : found;
      const auto wrong = at::cross_entropy_loss(scores, batch.instruments);
      const auto loss =
          kOfTeacher * kTemperature * kTemperature * apart / static_cast<double>(taken->size()) +
          (1 - kOfTeacher) * wrong;
      report.losses.push_back(loss.item<double>());
      loss.backward();
      optimizer.step();
    }
    schedule.step();
    if (edited("tones-tests-after-each-epoch")) {
      const auto [at_loss, at_right] = test_of(group, student, tests);
      if (rank == 0) std::cout << "epoch " << epoch << ": " << at_loss << " " << at_right << "\n";
    }
  }
  if (!edited("tones-statistics-not-averaged")) average_statistics(group, student);

  const auto [loss, right] = test_of(group, student, tests);
  report.held_out = loss;
  report.numbers["right"] = {right};
  report.numbers["teacher_right"] = {test_of(group, teacher, tests).second};
  report.numbers["buffers"] = flat(student->high_norm->running_var);
  if (rank == 0) std::cout << "right: " << right << "\n";
  write(folder, rank, report, *student);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
