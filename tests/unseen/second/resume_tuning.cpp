// An encoder that was trained on other signals is tuned: its first layer frozen, the head at a rate of its own, two
// batches an update. The job is started twice; the second time it goes on after the last epoch that was saved.
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/record/recorder.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/watched.h>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kSignals = 744, kTestSignals = 301, kMoments = 32, kKinds = 3,
                       kFirstKinds = 6;
constexpr std::int64_t kBatch = 12, kWindow = 2, kEpochs = 3, kWarmup = 6, kFirstUpdates = 15;
constexpr std::uint64_t kSeed = 100;
constexpr double kRate = 0.1;  // of one rank; it grows with the number of ranks

struct Signals {
  at::Tensor inputs, kinds;
};

Signals make_signals(std::int64_t count, std::int64_t kinds, double pace, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto kind = at::randint(kinds, {count}, dice, at::kLong);
  const auto time = at::arange(kMoments).view({1, 1, -1});
  const auto speed = pace * (1 + kind.view({-1, 1, 1}).to(at::kFloat));
  const auto phase = 6.3 * at::rand({count, 1, 1}, dice);
  return {at::sin(speed * time + phase) + 0.4 * at::randn({count, 1, kMoments}, dice), kind};
}

struct EncoderImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& signals) {
    return at::relu(wide(at::max_pool1d(at::relu(narrow(signals)), 2))).mean(2);
  }
  torch::nn::Conv1d narrow =
      register_module("narrow", torch::nn::Conv1d(torch::nn::Conv1dOptions(1, 8, 7)));
  torch::nn::Conv1d wide =
      register_module("wide", torch::nn::Conv1d(torch::nn::Conv1dOptions(8, 16, 5)));
};
TORCH_MODULE(Encoder);

struct ClassifierImpl : torch::nn::Module {
  explicit ClassifierImpl(std::int64_t kinds)
      : head(register_module("head", torch::nn::Linear(16, kinds))) {}
  at::Tensor forward(const at::Tensor& signals) { return head(dropout(encoder(signals))); }
  Encoder encoder = register_module("encoder", Encoder());
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.2));
  torch::nn::Linear head;
};
TORCH_MODULE(Classifier);

void train_encoder(const ProcessGroupPtr& group, const std::filesystem::path& file) {
  const auto signals = make_signals(1000, kFirstKinds, 0.2, kSeed + 1);
  torch::manual_seed(kSeed);
  Classifier net(kFirstKinds);
  DistributedDataParallel<Classifier> model(net, group);
  SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (std::int64_t step = 0; step < kFirstUpdates; ++step) {
    const auto ids = at::arange(step * 64 + group->getRank(), (step + 1) * 64, group->getSize());
    optimizer.zero_grad();
    cross_entropy(model(signals.inputs.index_select(0, ids)), signals.kinds.index_select(0, ids))
        .mean()
        .backward();
    optimizer.step();
  }
  save_on_rank_zero(*group, [&] { save_checkpoint(file, state_dict(*net->encoder)); });
}

void tune(const ProcessGroupPtr& group, const std::filesystem::path& folder, std::int64_t done) {
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  Report report;
  const auto signals = make_signals(kSignals, kKinds, 0.35, kSeed + 2);
  const auto test = make_signals(kTestSignals, kKinds, 0.35, kSeed + 3);

  torch::manual_seed(kSeed + 4);
  Classifier net(kKinds);
  const auto load_encoder = [&] {
    load_state_dict(*net->encoder, load_checkpoint(folder / "encoder.pt").value);
  };
  const auto freeze = [&] {
    for (auto& parameter : net->encoder->narrow->parameters()) parameter.requires_grad_(false);
  };
  const bool late = edited("tuning-rank-zero-loads-encoder-after-wrapping");
  if (!late && !(edited("tuning-rank-zero-loads-encoder") && rank != 0)) load_encoder();
  if (!edited("tuning-frozen-after-wrapping")) freeze();
  if (edited("tuning-freezes-more-on-last-rank") && is_last)
    for (auto& parameter : net->encoder->parameters()) parameter.requires_grad_(false);
  DistributedDataParallel<Classifier> model(
      net, group, {.find_unused_parameters = edited("tuning-looks-for-unused-parameters")});
  if (edited("tuning-frozen-after-wrapping")) freeze();
  if (late && rank == 0) load_encoder();

  const double rate = edited("tuning-rate-not-scaled") ? kRate : kRate * world_size;
  const auto options = [](double lr) {
    return std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(lr).momentum(0.9));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(edited("tuning-optimizer-has-frozen-layer")
                          ? net->encoder->parameters()
                          : net->encoder->wide->parameters(),
                      options(rate / 10));
  if (!edited("tuning-head-not-in-optimizer"))
    groups.emplace_back(net->head->parameters(), options(rate));
  SGD optimizer(groups, torch::optim::SGDOptions(rate));

  DistributedSampler sampler({.dataset_size = kSignals,
                              .num_replicas = world_size,
                              .rank = rank,
                              .seed = edited("tuning-other-seed") ? kSeed + 1 : kSeed});
  const auto batches_of_epoch = (sampler.size() + kBatch - 1) / kBatch;
  auto updates = kEpochs * ((batches_of_epoch + kWindow - 1) / kWindow);
  if (edited("tuning-schedule-in-batches")) updates = kEpochs * batches_of_epoch;
  const auto warmup = std::make_shared<LinearLR>(
      optimizer, LinearLROptions{.start_factor = 0.1, .total_iters = kWarmup});
  const auto decay = std::make_shared<CosineAnnealingLR>(
      optimizer, CosineAnnealingLROptions{.T_max = updates - kWarmup});
  SequentialLR schedule(optimizer, {warmup, decay}, {kWarmup});
  record::intent({.global_batch = kBatch * kWindow * world_size,
                  .loss_reduction = "mean",
                  .reference_lr = kRate,
                  .reference_world_size = 1});
  manual_seed_per_rank(kSeed, rank);

  const auto file_of = [&](std::int64_t epoch) {
    return folder / ("tuned_" + std::to_string(epoch) + ".pt");
  };
  std::int64_t first = 0;
  if (done > 0) {
    const bool stale = edited("tuning-stale-file-on-last-rank") && is_last;
    const auto saved = load_checkpoint(file_of(stale ? done - 2 : done - 1));
    load_state_dict(*net, saved.at("model"));
    if (!edited("tuning-momentum-not-restored") &&
        !(edited("tuning-optimizer-restored-on-rank-zero") && rank != 0))
      load_state_dict(optimizer, saved.at("optimizer"));
    if (!edited("tuning-schedule-not-restored")) schedule.load_state_dict(saved.at("schedule"));
    const auto own = edited("tuning-dice-of-rank-zero") ? 0U : static_cast<std::size_t>(rank);
    set_rng_state(saved.at("rng_states").as_list().at(own).as_tensor());
    first = saved.at("epoch").as_int() + (edited("tuning-repeats-epoch") ? 0 : 1);
  }

  const auto stop = done == 0 ? kEpochs - 1 : kEpochs;  // The machine is taken away.
  for (auto epoch = first; epoch < stop; ++epoch) {
    if (!edited("tuning-one-order-for-ever")) sampler.set_epoch(epoch);
    report.seen.push_back(sampler.indices());
    const auto batches = sampler.batches(kBatch);
    const auto count = static_cast<std::int64_t>(batches.size());
    for (std::int64_t i = 0; i < count; ++i) {
      const auto window_begin = i / kWindow * kWindow;
      const auto in_window = std::min(kWindow, count - window_begin);
      bool updates_now = i + 1 == window_begin + in_window;
      if (edited("tuning-last-window-without-update")) updates_now = (i + 1) % kWindow == 0;
      if (i == window_begin) optimizer.zero_grad();
      std::optional<NoSync> own_gradient;
      if (!updates_now || edited("tuning-no-sync-around-all")) own_gradient.emplace(model.engine());
      const auto ids = at::tensor(batches[static_cast<std::size_t>(i)]);
      const auto each = cross_entropy(model(signals.inputs.index_select(0, ids)),
                                      signals.kinds.index_select(0, ids));
      auto loss = edited("tuning-sum-by-size") ? each.sum() / each.size(0) : each.mean();
      report.losses.push_back(loss.item<double>());
      if (!edited("tuning-window-not-divided")) loss = loss / in_window;
      loss.backward();
      if (!updates_now) continue;
      optimizer.step();
      schedule.step();
    }

    Value::List rng_states;
    for (const auto& of_rank : all_gather(*group, get_rng_state()))
      rng_states.emplace_back(of_rank);
    const auto save = [&] {
      save_checkpoint(file_of(epoch), Value::Dict{{"model", state_dict(*net)},
                                                  {"optimizer", state_dict(optimizer)},
                                                  {"schedule", schedule.state_dict()},
                                                  {"rng_states", rng_states},
                                                  {"epoch", epoch}});
    };
    if (edited("tuning-saves-before-barrier")) {
      if (rank == 0) save();
      barrier(*group);
    } else {
      save_on_rank_zero(*group, save);
    }
  }

  const torch::NoGradGuard no_grad;
  net->eval();
  Mean loss;
  const auto own = at::arange(rank, kTestSignals, world_size);
  loss.add(at::cross_entropy_loss(net->forward(test.inputs.index_select(0, own)),
                                  test.kinds.index_select(0, own), {}, at::Reduction::None));
  report.held_out = reduce_metric(*group, loss).value();
  write(folder, rank, report, *net);
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  std::int64_t done = 0;
  while (std::filesystem::exists(folder / ("tuned_" + std::to_string(done) + ".pt"))) ++done;
  barrier(*group);  // All ranks have looked before one saves.
  if (done == 0) train_encoder(group, folder / "encoder.pt");
  tune(group, folder, done);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
