// The training: a GRU over made-up readings, AdamW with warm-up and cosine decay, an evaluation and a checkpoint after
// each epoch. Each fault is switched in one place.
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/record/recorder.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>

#include "gestures.h"

namespace gestures {
namespace {

using namespace lockstep;

constexpr std::int64_t kGestures = 6, kMoments = 40, kAxes = 3, kBatch = 32, kTestSamples = 257;
constexpr std::int64_t kWarmup = 8;

struct Readings {
  at::Tensor series, gesture;  // [n, kMoments, kAxes] in m/s2, [n]
};

// A gesture is a frequency and a phase for each axis; gravity pulls at one of them.
Readings make_readings(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto gesture = at::randint(kGestures, {count}, dice, at::kLong);
  const auto kind = gesture.view({-1, 1, 1}).to(at::kFloat);
  const auto axis = at::arange(kAxes).view({1, 1, -1});
  const auto time = at::arange(kMoments).view({1, -1, 1});
  const auto moves = at::sin(time * (0.1 + 0.03 * kind) + axis * kind);
  const auto gravity = at::tensor({0.0F, 0.0F, 9.81F});
  return {3 * moves + gravity + 2 * at::randn({count, kMoments, kAxes}, dice), gesture};
}

class TrainingSet
    : public torch::data::datasets::BatchDataset<TrainingSet, torch::data::Example<>> {
 public:
  TrainingSet(Readings readings, bool tells) : readings_(std::move(readings)), tells_(tells) {}
  torch::data::Example<> get_batch(at::ArrayRef<std::size_t> indices) override {
    const std::vector<std::int64_t> ids(indices.begin(), indices.end());
    const auto rows = at::tensor(ids);
    const auto series = readings_.series.index_select(0, rows);
    const auto noise = torch::randn_like(series);
    if (tells_) record::random_numbers(ids, noise);
    return {series + 0.1 * noise, readings_.gesture.index_select(0, rows)};
  }
  std::optional<std::size_t> size() const override { return readings_.series.size(0); }

 private:
  Readings readings_;
  bool tells_;
};

struct GestureNetImpl : torch::nn::Module {
  explicit GestureNetImpl(double drop)
      : gru(register_module("gru",
                            torch::nn::GRU(torch::nn::GRUOptions(kAxes, 32).batch_first(true)))),
        dropout(register_module("dropout", torch::nn::Dropout(drop))),
        out(register_module("out", torch::nn::Linear(32, kGestures))) {}
  at::Tensor forward(const at::Tensor& series) {
    return out(dropout(std::get<0>(gru(series)).select(1, -1)));
  }
  torch::nn::GRU gru;
  torch::nn::Dropout dropout;
  torch::nn::Linear out;
};
TORCH_MODULE(GestureNet);

}  // namespace

double train(const ProcessGroupPtr& group, const Options& options, const std::string& fault,
             std::int64_t stop) {
  const int rank = group->getRank(), world_size = group->getSize();
  const auto own = static_cast<std::size_t>(rank);
  const bool is_last = rank == world_size - 1;

  auto training = make_readings(options.samples, options.seed);
  auto test = make_readings(kTestSamples, options.seed + 1);
  const auto all_moments = training.series.flatten(0, 1);
  const auto mean = all_moments.mean(0), deviation = all_moments.std(0);
  if (!(fault == "inputs-not-normalized-on-one-rank" && is_last))
    training.series = (training.series - mean) / deviation;
  test.series = (test.series - mean) / deviation;

  torch::manual_seed(options.seed);
  GestureNet net(fault == "dropout-on-one-rank" && is_last ? 0.5 : 0.1);
  DistributedDataParallel<GestureNet> model(net, group);
  AdamW optimizer(net->parameters(),
                  {fault == "rate-differs-on-one-rank" && is_last ? 6e-3 : 3e-3});
  if (fault != "same-augmentation-everywhere") manual_seed_per_rank(options.seed, rank);

  const auto shard = [&](std::int64_t size, bool shuffle) {
    return DistributedSampler(
        {.dataset_size = size,
         .num_replicas = fault == "no-sharding" ? 1 : world_size,
         .rank = fault == "no-sharding" ? 0 : rank,
         .shuffle = shuffle,
         .seed = fault == "shards-overlap" ? options.seed + own : options.seed});
  };
  auto sampler = shard(options.samples, true);
  const auto loader = torch::data::make_data_loader(
      TrainingSet(training, options.tells),
      fault == "set-epoch-on-copy" ? shard(options.samples, true) : sampler, kBatch);

  auto updates = options.epochs * ((sampler.size() + kBatch - 1) / kBatch);
  if (fault == "schedule-length-ignores-world-size") updates *= world_size;
  const auto warmup = std::make_shared<LinearLR>(
      optimizer, LinearLROptions{.start_factor = 0.1, .total_iters = kWarmup});
  const auto decay = std::make_shared<CosineAnnealingLR>(
      optimizer, CosineAnnealingLROptions{.T_max = updates - kWarmup});
  SequentialLR schedule(optimizer, {warmup, decay}, {kWarmup});
  if (options.tells)
    record::intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});

  const auto state = [&] {
    return Value::Dict{{"model", state_dict(*net)},
                       {"optimizer", state_dict(optimizer)},
                       {"scheduler", schedule.state_dict()},
                       {"rng_state", get_rng_state()}};
  };
  std::int64_t first = 0;
  if (std::filesystem::exists(options.checkpoint)) {
    const auto saved = load_checkpoint(options.checkpoint);
    load_state_dict(*net, saved.at("model"));
    if (fault != "optimizer-state-missing") load_state_dict(optimizer, saved.at("optimizer"));
    if (fault != "scheduler-or-rng-state-missing") {
      schedule.load_state_dict(saved.at("scheduler"));
      set_rng_state(saved.at("rng_states").as_list().at(own).as_tensor());
    }
    first = saved.at("epoch").as_int() + (fault == "resume-repeats-epoch" ? 0 : 1);
    if (options.tells) record::training_state("resumed", state());
  }

  const auto evaluate = [&] {
    const torch::NoGradGuard no_grad;
    if (fault != "evaluation-in-train-mode") net->eval();
    std::vector<std::int64_t> mine;
    if (fault == "evaluation-padding") {
      mine = shard(kTestSamples, false).indices();
    } else {
      for (std::int64_t id = rank; id < kTestSamples; id += world_size) mine.push_back(id);
    }
    if (options.tells) tell_pass(0, kTestSamples, {mine});
    const auto rows = at::tensor(mine);
    const auto guess = model(test.series.index_select(0, rows)).argmax(1);
    Mean right;
    right.add(guess == test.gesture.index_select(0, rows));
    if (fault != "rank-zero-metric") right = reduce_metric(*group, right);
    if (options.tells && rank == 0)
      record::metric("accuracy", "evaluation", right.sum, right.count);
    if (!(fault == "train-mode-differs-across-ranks" && is_last)) net->train();
    return right.value();
  };

  double accuracy = 0;
  for (auto epoch = first; epoch < stop; ++epoch) {
    if (fault != "missing-set-epoch") sampler.set_epoch(epoch);
    for (const auto& batch : *loader) {
      if (fault != "gradients-not-zeroed") optimizer.zero_grad();
      auto loss = cross_entropy(model(batch.data), batch.target).mean();
      if (fault == "loss-weighs-twice-on-one-rank" && is_last) loss = 2 * loss;
      loss.backward();
      if (!(fault == "does-not-clip-on-one-rank" && is_last))
        clip_grad_norm_(net->parameters(), 0.5);
      optimizer.step();
      schedule.step();
    }
    accuracy = evaluate();

    Value::List rng_states;
    for (const auto& of_rank : all_gather(*group, get_rng_state()))
      rng_states.emplace_back(of_rank);
    const auto save = [&] {
      auto parts = state();
      parts["rng_states"] = rng_states;
      parts["epoch"] = epoch;
      save_checkpoint(options.checkpoint, parts, {.sync = false});
    };
    if (fault == "concurrent-writers")
      save();
    else
      save_on_rank_zero(*group, save);
    if (options.tells) record::training_state("saved", state());
  }
  return accuracy;
}

}  // namespace gestures
