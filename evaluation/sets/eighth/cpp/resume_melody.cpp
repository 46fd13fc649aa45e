// Which note comes next? An LSTM with dropout learns it from short melodies that are moved up and down at
// random. The job ends in the middle of an epoch the first time, and goes on from its files the second
// time. The weights that validated best are the result.
#include <lockstep/checkpoint/broadcast_value.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/train/adam.h>
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

constexpr std::int64_t kMelodies = 140, kValidation = 41, kTests = 60, kNotes = 10, kLength = 12;
constexpr std::int64_t kEpochs = 7, kBatch = 10, kSaveEvery = 10, kStopAt = 30, kHidden = 32;
constexpr std::uint64_t kSeed = 1685;
constexpr double kRate = 0.15;

// Steps up or down depend on the one before, and on whether a melody is merry.
at::Tensor composed(std::int64_t count, std::uint64_t seed) {
  auto own = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto merry = at::rand({count}, own).lt(0.5).to(at::kFloat);
  auto step = at::ones({count}), note = at::floor(at::rand({count}, own) * kNotes);
  std::vector<at::Tensor> notes{note};
  while (static_cast<std::int64_t>(notes.size()) <= kLength) {
    const auto turns = at::rand({count}, own).lt(0.15 + 0.3 * merry);
    const auto leaps = at::rand({count}, own).lt(0.12).to(at::kFloat);
    step = at::where(turns, 1 + 2 * merry - step, step) + 3 * leaps;
    step = at::where(step > 4, -at::ones_like(step), step);
    note = at::remainder(note + step, static_cast<double>(kNotes));
    notes.push_back(note);
  }
  return at::stack(notes, 1).to(at::kLong);
}

struct ComposerImpl : torch::nn::Module {
  ComposerImpl()
      : drop(register_module(
            "drop", torch::nn::Dropout(edited("resume_melody-drops-more") ? 0.15 : 0.1))) {}
  at::Tensor forward(const at::Tensor& notes) {
    return out(drop(std::get<0>(lstm(drop(embedding(notes))))));
  }
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(kNotes, 12));
  torch::nn::LSTM lstm = register_module(
      "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(12, kHidden).batch_first(true)));
  torch::nn::Dropout drop;
  torch::nn::Linear out = register_module("out", torch::nn::Linear(kHidden, kNotes));
};
TORCH_MODULE(Composer);

at::Tensor losses_of(const at::Tensor& scores, const at::Tensor& melodies) {
  return at::cross_entropy_loss(scores.transpose(1, 2), melodies.slice(1, 1), {},
                                at::Reduction::None)
      .mean(1);
}

// The mean loss on these melodies, of which each rank takes its share.
Mean validate(const ProcessGroupPtr& group, Composer& net, const at::Tensor& melodies) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto own = melodies.slice(0, group->getRank(), std::nullopt, group->getSize());
  Mean losses;
  const std::int64_t most = edited("resume_melody-validates-in-parts") ? 8 : own.size(0);
  for (const auto& part : own.split(most)) losses.add(losses_of(net(part.slice(1, 0, -1)), part));
  if (!edited("resume_melody-stays-in-eval")) net->train();
  return losses;
}

struct Files {
  explicit Files(const std::filesystem::path& folder)
      : model(folder / "model.pt"),
        former(folder / "model_former.pt"),
        progress(folder / "progress.pt") {}
  std::filesystem::path model, former, progress;
};

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(8)});
  const int rank = group->getRank(), ranks = group->getSize();
  const Files files(folder);
  const auto melodies = composed(kMelodies, kSeed + 1),
             validation = composed(kValidation, kSeed + 2), tests = composed(kTests, kSeed + 3);
  torch::manual_seed(kSeed);
  Composer net;
  DistributedDataParallel<Composer> model(net, group);
  Adam optimizer(model.parameters(), AdamOptions(kRate));
  DistributedSampler sampler(
      {.dataset_size = kMelodies, .num_replicas = ranks, .rank = rank, .seed = kSeed});
  const auto updates = kEpochs * (sampler.size() / kBatch);
  CosineAnnealingLR schedule(optimizer, {.T_max = updates, .eta_min = 0.3 * kRate});
  manual_seed_per_rank(kSeed, rank);

  std::int64_t first_epoch = 0, update = 0;
  double best = 1e9;
  Value best_weights;
  const bool resumed = std::filesystem::exists(files.progress);
  bool within = false;
  if (resumed) {
    const auto stale = edited("resume_melody-former-model-on-rank-one") && rank == 1;
    Value saved;
    if (edited("resume_melody-rank-zero-reads")) {
      if (rank == 0) saved = load_checkpoint(files.model).value;
      saved = broadcast_value(*group, saved);
    } else {
      saved = load_checkpoint(stale ? files.former : files.model).value;
    }
    load_state_dict(*net, saved.at("model"));
    if (!edited("resume_melody-optimizer-on-rank-zero") || rank == 0)
      load_state_dict(optimizer, saved.at("optimizer"));
    const auto progress = load_checkpoint(files.progress);
    if (!edited("resume_melody-schedule-not-loaded"))
      schedule.load_state_dict(progress.at("schedule"));
    if (!edited("resume_melody-sampler-not-loaded")) {
      sampler.load_state_dict(progress.at("sampler"));
      within = true;
    }
    const auto whose =
        edited("resume_melody-dice-of-rank-zero") ? 0 : static_cast<std::size_t>(rank);
    set_rng_state(progress.at("dice").as_list().at(whose).as_tensor());
    best = progress.at("best").as_double();
    best_weights = progress.at("best_weights");
    if (!edited("resume_melody-epoch-on-rank-zero") || rank == 0) {
      first_epoch = progress.at("epoch").as_int();
      update = progress.at("update").as_int();
    }
  }

  Report report;
  const auto save = [&](std::int64_t epoch) {
    Value::List states;
    for (const auto& state : all_gather(*group, get_rng_state())) states.emplace_back(state);
    save_on_rank_zero(*group, [&] {
      if (std::filesystem::exists(files.model)) std::filesystem::rename(files.model, files.former);
      Value::Dict kept{{"model", state_dict(*net)}, {"optimizer", state_dict(optimizer)}};
      if (edited("resume_melody-saves-more")) {
        kept["rate"] = schedule.get_last_lr().at(0);
        kept["notes"] = Value::Dict{{"seed", std::to_string(kSeed)}, {"ranks", ranks}};
      }
      save_checkpoint(files.model, kept, {.sync = false});
      save_checkpoint(files.progress,
                      Value::Dict{{"schedule", schedule.state_dict()},
                                  {"sampler", sampler.state_dict()},
                                  {"dice", states},
                                  {"best", best},
                                  {"best_weights", best_weights},
                                  {"epoch", epoch},
                                  {"update", update}},
                      {.sync = false});
    });
  };

  for (auto epoch = first_epoch; epoch < kEpochs; ++epoch) {
    if (!within) {
      sampler.set_epoch(epoch);
      sampler.reset();
    }
    within = false;
    auto& seen = report.seen.emplace_back();
    while (const auto dealt = sampler.next(kBatch)) {
      const std::vector<std::int64_t> ids(dealt->begin(), dealt->end());
      seen.insert(seen.end(), ids.begin(), ids.end());
      const auto chances = at::rand({static_cast<std::int64_t>(ids.size()), 1});
      report.numbers["drawn"].push_back(chances[0].item<double>());
      const auto moved = at::floor(chances * 3).to(at::kLong);
      const auto batch =
          at::remainder(melodies.index_select(0, at::tensor(ids, at::kLong)) + moved, kNotes);
      optimizer.zero_grad();
      const auto scores = model(batch.slice(1, 0, -1));
      const auto loss = tell_loss(losses_of(scores, batch), scores, batch).mean();
      report.losses.push_back(loss.item<double>());
      loss.backward();
      optimizer.step();
      schedule.step();
      if (++update % kSaveEvery == 0) save(epoch);
      if (update == kStopAt && !resumed) {
        destroy_process_group(group);
        return;
      }
    }
    const auto own = validate(group, net, validation);
    const auto every = reduce_metric(*group, own);
    const auto lost = edited("resume_melody-best-by-own-loss") ? own.value() : every.value();
    if (lost < best) {
      best = lost;
      auto copies = Value::Dict();
      for (const auto& [name, weights] : state_dict(*net).as_dict())
        copies[name] = weights.as_tensor().clone();
      best_weights = copies;
    }
    if (rank == 0)
      std::cout << "epoch " << epoch << ": " << every.value() << ", best " << best << "\n";
  }
  report.numbers["last"] = flat(net->out->bias.detach());
  load_state_dict(*net, best_weights);
  report.held_out = reduce_metric(*group, validate(group, net, tests)).value();
  if (rank == 0) std::cout << "tested " << report.held_out << " after " << update << " updates\n";
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
