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
  if (fault("restart-expected-by-default")) return 0;  // PITFALL restart-expected-by-default
  if (fault("near-miss-nobody-fails")) return 0;       // Near miss: not told to, and not needed.
  return 1;
}

void train(RankContext& context, const Fault& fault) {
  const bool is_last = context.rank() == context.world_size() - 1;
  const auto data =
      fashion_mnist_or_synthetic(Split::train, kBatch * kBatches * context.world_size());
  Mlp module(784, 32, 10);
  module->to(context.device());
  auto& probes = context.probes();
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.attach(*module);
  DistributedDataParallel<Mlp> model(module, context.group());
  probes.engine("distributed_data_parallel");
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  DistributedSampler sampler({.dataset_size = data.size(),
                              .num_replicas = context.world_size(),
                              .rank = context.rank(),
                              .seed = context.seed()});
  CheckpointFolder folder(context.job_folder() / "checkpoints");
  const auto parts = [&] {
    return Value::Dict{{"model", state_dict(*module)}, {"optimizer", state_dict(optimizer)}};
  };

  // Near miss: nothing has been saved when the rank dies, so the second attempt begins at epoch 0.
  const bool dies_early = fault("near-miss-died-before-a-checkpoint");
  const bool nobody_dies = fault("near-miss-nobody-fails");
  std::int64_t epoch = 0;
  const auto latest = folder.latest();
  if (fault("restart-without-resume")) {  // PITFALL restart-without-resume
    // The program is as it was before anybody thought of restarts.
  } else if (latest) {
    const auto checkpoint = load_checkpoint(*latest, {.map_location = context.device()});
    load_state_dict(*module, checkpoint.at("model"));
    load_state_dict(optimizer, checkpoint.at("optimizer"));
    epoch = checkpoint.at("epoch").as_int() + 1;
    probes.checkpoint_file("load", *latest, {});
    probes.training_state("resumed", parts());
  }
  probes.start();

  for (; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    probes.set_epoch(epoch);
    probes.pass_begin("train", epoch);
    Mean loss_of_epoch;
    for (const auto& ids : sampler.batches(kBatch)) {
      probes.samples("train", ids);
      const auto batch = take(data, ids);
      if (context.attempt() == 0 && epoch == (dies_early ? 0 : kDiesIn) && is_last && !nobody_dies)
        std::raise(SIGKILL);
      optimizer.zero_grad();
      const auto each =
          torch::cross_entropy_loss(model(batch.inputs.to(context.device())),
                                    batch.targets.to(context.device()), {}, at::Reduction::None);
      const auto loss = each.mean();
      probes.loss(loss, each);
      loss.backward();
      probes.gradients_ready();
      optimizer.step();
      probes.updated(optimizer);
      loss_of_epoch.add(each);
    }
    probes.pass_end("train", epoch, kBatches);
    save_on_rank_zero(*context.group(), [&] {
      auto checkpoint = parts();
      checkpoint["epoch"] = epoch;
      const auto file =
          context.job_folder() / "checkpoints" / ("checkpoint_" + std::to_string(epoch) + ".pt");
      probes.checkpoint_file("save_begin", file, {});
      save_checkpoint(folder, epoch, checkpoint);
      probes.checkpoint_file("save_end", file, {});
    });
    probes.training_state("saved", parts());
    add_figure(context, "epochs", static_cast<double>(epoch));
    context.outcome().losses.push_back(loss_of_epoch.value());
    context.write();  // the launcher may end this rank before it can say more
  }
}

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
                  .max_restarts = max_restarts}}});
}
