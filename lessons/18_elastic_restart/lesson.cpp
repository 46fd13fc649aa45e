// Lesson 18: elastic restart. A rank is killed; the launcher ends the others and starts all again.
//
// Concept:  a launcher restarts processes, it does not restore anything: each attempt begins in
//           main(). The program must look for the newest complete checkpoint, and continue after
//           it. And a launcher restarts only if it was told to: torchrun's --max-restarts is 0 by
//           default.
// Symptom:  after the restart training begins at epoch 0, and what was trained is trained again. Or
//           the job ends at its first failure, in the middle of the night.
//
// Run:  ./lockstep run 18_elastic_restart
//       18_elastic_restart --variant restart-without-resume --world-size 4
//       torchrun --nproc-per-node 2 --max-restarts 1 --no-python
//           18_elastic_restart --variant correct --folder /tmp/job
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include <csignal>
#include <set>

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr std::int64_t kBatches = 4;
constexpr std::int64_t kEpochs = 4;
constexpr std::int64_t kDiesIn = 2;  // epoch

// What the job is started with.
int max_restarts(const Fault& fault) {
  if (fault("restart-expected-by-default")) {
    return 0;
  } else if (fault("near-miss-nobody-fails")) {
    return 0;  // Near miss: not told to, and not needed.
  } else {
    return 1;
  }
}

// The last rank's machine fails, in the job's first attempt.
bool dies_now(const RankContext& context, const Fault& fault, std::int64_t epoch) {
  if (fault("near-miss-nobody-fails")) return false;
  // Near miss: nothing has been saved when the rank dies, so the second attempt begins at epoch 0.
  const auto when = fault("near-miss-died-before-a-checkpoint") ? 0 : kDiesIn;
  return context.attempt() == 0 && context.rank() == context.world_size() - 1 && epoch == when;
}

void train(RankContext& context, const Fault& fault) {
  const auto data =
      fashion_mnist_or_synthetic(Split::train, kBatch * kBatches * context.world_size());
  Mlp module(784, 32, 10);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());
  SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  DistributedSampler sampler({.dataset_size = data.size(),
                              .num_replicas = context.world_size(),
                              .rank = context.rank(),
                              .seed = context.seed()});
  CheckpointFolder folder(context.job_folder() / "checkpoints");
  const auto state = [&] {
    return Value::Dict{{"model", state_dict(*module)}, {"optimizer", state_dict(optimizer)}};
  };

  std::int64_t epoch = 0;
  if (fault("restart-without-resume")) {
    // The program is as it was before anybody thought of restarts.
  } else if (const auto latest = folder.latest()) {
    const auto checkpoint = load_checkpoint(*latest, {.map_location = context.device()});
    load_state_dict(*module, checkpoint.at("model"));
    load_state_dict(optimizer, checkpoint.at("optimizer"));
    epoch = checkpoint.at("epoch").as_int() + 1;
    context.training_state("resumed", state());
  }

  for (; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    for (const auto& ids : sampler.batches(kBatch)) {
      const auto batch = take(data, ids);
      if (dies_now(context, fault, epoch)) std::raise(SIGKILL);
      optimizer.zero_grad();
      const auto outputs = model(batch.inputs.to(context.device()));
      cross_entropy(outputs, batch.targets.to(context.device())).mean().backward();
      optimizer.step();
    }
    save_on_rank_zero(*context.group(), [&] {
      auto checkpoint = state();
      checkpoint["epoch"] = epoch;
      save_checkpoint(folder, epoch, checkpoint);
    });
    context.training_state("saved", state());
  }
}

// Beside it the epochs that were saved are written down at once: the launcher may end this rank
// before it can say more.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void pass_begins(std::int64_t epoch, std::int64_t dataset_size) override {
    Notes::pass_begins(epoch, dataset_size);
    epoch_ = epoch;
  }
  void saved(const std::filesystem::path&, const std::vector<std::string>&) override {
    add_figure(context(), "epochs", static_cast<double>(epoch_));
    context().write();
  }
  // Nothing: what is not written yet is of an epoch that a failure broke off.
  void finish() override {}

 private:
  std::int64_t epoch_ = 0;
};

// Epochs that rank 0 trained and saved, over all attempts.
std::vector<double> saved_epochs(const Outcomes& outcomes) {
  const auto found = outcomes.at(0).figures.find("epochs");
  return found == outcomes.at(0).figures.end() ? std::vector<double>{} : found->second;
}

Measured repeated(const Outcomes& outcomes) {
  const auto epochs = saved_epochs(outcomes);
  const std::set<double> different(epochs.begin(), epochs.end());
  return {.expected = 0, .observed = static_cast<double>(epochs.size() - different.size())};
}

Measured finished(const Outcomes& outcomes) {
  const auto epochs = saved_epochs(outcomes);
  const std::set<double> different(epochs.begin(), epochs.end());
  return {.expected = kEpochs, .observed = static_cast<double>(different.size())};
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::lesson_main(
      argc, argv,
      {.name = "18_elastic_restart",
       .title = "Elastic restart: restarting is not resuming",
       .parts = {{.name = "restart",
                  .run = train,
                  .broken = {{.slug = "restart-without-resume",
                              .what = "the second attempt does not look for a checkpoint",
                              .oracle = {"epochs that were saved, and trained again", repeated}},
                             {.slug = "restart-expected-by-default",
                              .what = "nobody told the launcher to start the job again",
                              .oracle = {"epochs done when the job has ended", finished},
                              .crashes = true}},
                  .near_misses = {{.name = "near-miss-died-before-a-checkpoint",
                                   .slug = "restart-without-resume",
                                   .naive_check = "the second attempt begins at epoch 0"},
                                  {.name = "near-miss-nobody-fails",
                                   .slug = "restart-expected-by-default",
                                   .naive_check = "the job is started with max_restarts 0"}},
                  .max_restarts = max_restarts,
                  .notes = notes<OwnNotes>}}});
}
