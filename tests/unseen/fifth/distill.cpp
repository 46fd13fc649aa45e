// What is wrong with the machine? A large net learns it from spectra of vibrations; then a small one learns from the
// large one, from labelled spectra and from a stream of others, and is used as the running average of its weights. A
// third module, the bridge, compares what the nets hold inside.
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/watched.h>

#include <algorithm>
#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kTones = 24, kDefects = 5, kLarge = 96, kSmall = 16;
constexpr std::int64_t kTeaching = 4, kLearning = 8, kBatch = 32, kStreamed = 32;
constexpr std::uint64_t kSeed = 606;
constexpr double kKeep = 0.9, kHeat = 3;

struct Spectra {
  at::Tensor tones, defects;
};

Spectra measure(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto machine = torch::make_generator<at::CPUGeneratorImpl>(kSeed + 1);
  const auto lines = at::randn({kDefects, kTones}, machine), load = at::randn({kTones}, machine);
  const auto defects = at::randint(kDefects, {count}, dice, at::kLong);
  const auto strength = 0.4 + at::rand({count, 1}, dice);
  const auto speed = at::randn({count, 1}, dice);
  return {at::tanh(strength * lines.index_select(0, defects) + speed * load) +
              0.7 * at::randn({count, kTones}, dice),
          defects};
}

using Outputs = std::tuple<at::Tensor, at::Tensor>;  // of the defects, and what is inside

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t width)
      : in(register_module("in", torch::nn::Linear(kTones, width))),
        hidden(register_module("hidden", torch::nn::Linear(width, width))),
        out(register_module("out", torch::nn::Linear(width, kDefects))) {}
  Outputs forward(const at::Tensor& tones) {
    const auto inside = dropout(torch::relu(hidden(torch::relu(in(tones)))));
    return {out(inside), inside};
  }
  torch::nn::Linear in, hidden, out;
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.2));
};
TORCH_MODULE(Net);

at::Tensor kl(const at::Tensor& guess, const at::Tensor& told) {
  const auto right = at::log_softmax(told, 1);
  return (right.exp() * (right - at::log_softmax(guess, 1))).sum(1).mean();
}

class Job {
 public:
  explicit Job(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void run() {
    torch::manual_seed(kSeed);
    Net teacher(kLarge), student(kSmall);
    torch::nn::Linear bridge(kSmall, kLarge);
    manual_seed_per_rank(kSeed, rank_);
    teach(teacher);
    const auto is_stale = edited("distill-teacher-of-first-epoch-on-last-rank") && is_last_;
    const auto saved = load_checkpoint(teacher_file(is_stale ? 0 : kTeaching - 1));
    load_state_dict(*teacher, saved.at("teacher"));
    if (!edited("distill-teacher-stays-in-training")) teacher->eval();
    for (auto& parameter : teacher->parameters()) parameter.set_requires_grad(false);

    Net average(kSmall);
    load_state_dict(*average, state_dict(*student));
    learn(teacher, student, bridge, average);
    report_.held_out = test(average);
    torch::nn::Module all;
    all.register_module("average", average.ptr());
    all.register_module("student", student.ptr());
    all.register_module("bridge", bridge.ptr());
    write(folder_, rank_, report_, all);
    destroy_process_group(group_);
  }

 private:
  std::filesystem::path teacher_file(std::int64_t epoch) const {
    return folder_ / ("teacher_" + std::to_string(epoch) + ".pt");
  }

  DistributedSampler make_sampler(std::uint64_t seed) const {
    return DistributedSampler({.dataset_size = training_.defects.size(0),
                               .num_replicas = world_size_,
                               .rank = rank_,
                               .seed = seed});
  }

  void teach(Net& teacher) {
    DistributedDataParallel<Net> model(teacher, group_);
    Adam optimizer(teacher->parameters(), AdamOptions(4e-3));
    auto sampler = make_sampler(kSeed + 2);
    for (std::int64_t epoch = 0; epoch < kTeaching; ++epoch) {
      sampler.set_epoch(epoch);
      for (const auto& batch : sampler.batches(kBatch)) {
        const auto ids = at::tensor(batch);
        optimizer.zero_grad();
        const auto guess = std::get<0>(model(training_.tones.index_select(0, ids)));
        const auto loss = cross_entropy(guess, training_.defects.index_select(0, ids)).mean();
        loss.backward();
        optimizer.step();
        report_.losses.push_back(loss.item<double>());
      }
      if (rank_ == 0)
        save_checkpoint(teacher_file(epoch), Value::Dict{{"teacher", state_dict(*teacher)}});
    }
    barrier(*group_);
  }

  // The number of a step's block of the stream, which is its seed.
  std::int64_t stream_number(std::int64_t step) const {
    if (edited("distill-stream-by-sum-of-rank-and-step"))
      return static_cast<std::int64_t>(kSeed * 1000) + rank_ + step;
    return static_cast<std::int64_t>(rank_seed(kSeed + 3, rank_) % 1'000'000'000) + step;
  }

  void learn(Net& teacher, Net& student, torch::nn::Linear& bridge, Net& average) {
    DistributedDataParallel<Net> model(student, group_);
    std::optional<DistributedDataParallel<torch::nn::Linear>> across;
    if (!edited("distill-bridge-without-wrapper")) across.emplace(bridge, group_);
    SGD optimizer(student->parameters(), torch::optim::SGDOptions(0.2).momentum(0.8));
    Adam bridge_optimizer(bridge->parameters(), AdamOptions(5e-3));
    Net slower(kSmall);
    load_state_dict(*slower, state_dict(*average));
    auto sampler = make_sampler(kSeed + 4);
    std::vector<at::Tensor> known;  // what the teacher says
    double best = 1e9;
    std::int64_t step = 0;
    for (std::int64_t epoch = 0; epoch < kLearning; ++epoch) {
      sampler.set_epoch(epoch);
      auto& seen = report_.seen.emplace_back();
      std::size_t number = 0;
      for (const auto& batch : sampler.batches(kBatch)) {
        seen.push_back(stream_number(step));
        const auto streamed = measure(edited("distill-longer-stream") ? 2 * kStreamed : kStreamed,
                                      static_cast<std::uint64_t>(seen.back()));
        const auto ids = at::tensor(batch);
        const auto tones = at::cat({training_.tones.index_select(0, ids), streamed.tones});
        auto [told, held] = teacher->forward(tones);  // is frozen
        if (edited("distill-remembers-the-teacher-by-batch")) {
          if (known.size() <= number) known.push_back(told.slice(0, 0, kBatch));
          told = at::cat({known[number], told.slice(0, kBatch)});
        }
        optimizer.zero_grad();
        bridge_optimizer.zero_grad();
        const auto [guess, inside] = model(tones);
        const auto each =
            cross_entropy(guess.slice(0, 0, ids.size(0)), training_.defects.index_select(0, ids));
        const auto imitation = kl(guess / kHeat, told / kHeat) * (kHeat * kHeat);
        const auto crossed = across ? (*across)(inside) : bridge(inside);
        const auto loss = 0.3 * each.mean() + imitation + 0.3 * at::mse_loss(crossed, held);
        loss.backward();
        optimizer.step();
        bridge_optimizer.step();
        if (!edited("distill-average-where-it-is-saved") || rank_ == 0)
          follow(average, student, kKeep);
        if (edited("distill-rank-zero-has-slower-average") && rank_ == 0)
          follow(slower, student, 0.98);
        report_.losses.push_back(loss.item<double>());
        ++step, ++number;
      }
      const auto loss = validate(teacher, average);
      report_.numbers["validated"].push_back(loss);
      if (loss > 0.905 * best)
        for (auto& group : optimizer.param_groups())
          group.options().set_lr(group.options().get_lr() / 4);
      best = std::min(best, loss);
      report_.numbers["lr"].push_back(optimizer.param_groups()[0].options().get_lr());
      if (edited("distill-rank-zero-has-slower-average") && rank_ == 0)
        std::cout << "the slower average: " << test(slower) << "\n";
    }
  }

  static void follow(Net& average, Net& net, double keep) {
    const torch::NoGradGuard no_grad;
    auto to = average->parameters(), from = net->parameters();
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (edited("distill-average-by-lerp"))
        to[i].lerp_(from[i], 1 - keep);
      else
        to[i].mul_(keep).add_(from[i], 1 - keep);
    }
  }

  // The loss; and what part of the guesses are the teacher's, which is only reported.
  double validate(Net& teacher, Net& net) {
    const torch::NoGradGuard no_grad;
    net->eval();
    const auto own = at::arange(rank_, validation_.defects.size(0), world_size_);
    const auto tones = validation_.tones.index_select(0, own);
    const auto guess = std::get<0>(net->forward(tones));
    const auto told = std::get<0>(teacher->forward(tones));
    Mean loss, agrees;
    loss.add(at::cross_entropy_loss(guess, validation_.defects.index_select(0, own), {},
                                    at::Reduction::None));
    agrees.add(guess.argmax(1).eq(told.argmax(1)).to(at::kDouble));
    const auto own_loss = loss;
    std::vector<Mean*> metrics{&loss, &agrees};
    if (edited("distill-metrics-in-a-hash-maps-order") && is_last_) std::ranges::reverse(metrics);
    for (auto* metric : metrics) {
      if (edited("distill-sums-and-divides")) {
        auto sums = at::tensor({metric->sum, metric->count}, at::kDouble);
        all_reduce(*group_, sums);
        *metric = {sums[0].item<double>(), sums[1].item<double>()};
      } else {
        *metric = reduce_metric(*group_, *metric);
      }
    }
    report_.numbers["agrees"].push_back(agrees.value());
    return (edited("distill-rate-by-own-validation") ? own_loss : loss).value();
  }

  double test(Net& net) const {
    const torch::NoGradGuard no_grad;
    net->eval();
    return at::cross_entropy_loss(std::get<0>(net->forward(test_.tones)), test_.defects)
        .item<double>();
  }

  std::filesystem::path folder_;
  ProcessGroupPtr group_ = init_process_group({.timeout = std::chrono::seconds(10)});
  int rank_ = group_->getRank(), world_size_ = group_->getSize();
  bool is_last_ = rank_ == world_size_ - 1;
  Spectra training_ = measure(384, kSeed + 5), validation_ = measure(120, kSeed + 6),
          test_ = measure(600, kSeed + 7);
  Report report_;
};

}  // namespace

int main(int argc, char** argv) {
  return unseen::run(argc, argv, [](const std::filesystem::path& folder) { Job(folder).run(); });
}
