// A job that is killed and started again: Adam, cosine decay, noise on the images, averaged weights; a
// checkpoint file. Every attempt begins with models and optimizers of its own.
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/record/recorder.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/seeding.h>

#include "silence.h"

namespace lockstep::silence {
namespace {

struct Attempt {
  explicit Attempt(const Job& job)
      : net(make_model()),
        average(std::dynamic_pointer_cast<MlpImpl>(net->clone())),
        model(net, job.group),
        optimizer(net->parameters(), AdamOptions(1e-3)),
        schedule(optimizer, {.T_max = job.updates()}),
        sampler(job.sampler()) {
    sampler.reset();
  }
  void begin_epoch(std::int64_t number) {
    epoch = number;
    batches = 0;
    sampler.set_epoch(epoch);
    sampler.reset();
  }
  Value::Dict parts() {
    return {{"model", state_dict(*net)},
            {"average", state_dict(*average)},
            {"optimizer", state_dict(optimizer)},
            {"scheduler", schedule.state_dict()},
            {"rng_state", get_rng_state()}};
  }

  Mlp net, average;
  DistributedDataParallel<Mlp> model;
  Adam optimizer;
  CosineAnnealingLR schedule;
  DistributedSampler sampler;
  std::int64_t epoch = 0, batches = 0;  // of the epoch, so far
};

void step(const Job& job, Attempt& run, const Fault& fault) {
  if (run.batches == job.updates_of_epoch()) run.begin_epoch(run.epoch + 1);
  const auto indices = *run.sampler.next(static_cast<std::size_t>(job.batch));
  ++run.batches;
  const auto batch = take(job.train, {indices.begin(), indices.end()});
  run.net->zero_grad();
  const auto noisy = batch.inputs + 0.3 * torch::randn_like(batch.inputs);
  mean_loss(run.model(noisy), batch.targets).backward();
  run.optimizer.step();
  run.schedule.step();
  if (fault("ema-on-one-rank") && job.rank() != 0) return;
  const torch::NoGradGuard no_grad;
  const auto from = run.net->parameters();
  auto to = run.average->parameters();
  for (std::size_t i = 0; i < to.size(); ++i) to[i].lerp_(from[i], 0.02);
}

std::filesystem::path file_of(const Job& job) {
  return job.folder / "checkpoint.pt";
}

// What this rank is going to go on from.
std::optional<Value> save(const Job& job, Attempt& run, const Fault& fault) {
  Value::List random;
  for (const auto& state : all_gather(*job.group, get_rng_state())) random.emplace_back(state);
  Value::Dict parts{{"model", state_dict(*run.net)},
                    {"average", state_dict(*run.average)},
                    {"epoch", run.epoch},
                    {"batches", run.batches},
                    {"sampler", run.sampler.state_dict()}};
  if (!fault("optimizer-state-missing")) parts["optimizer"] = state_dict(run.optimizer);
  if (!fault("scheduler-or-rng-state-missing")) {
    parts["scheduler"] = run.schedule.state_dict();
    parts["rng_state"] = random;
  }
  std::optional<Value> read;
  // Nobody waits for rank 0: the others find what was there before.
  if (fault("read-before-written") && job.rank() != 0 && std::filesystem::exists(file_of(job)))
    read = load_checkpoint(file_of(job)).value;
  barrier(*job.seam);
  save_on_rank_zero(*job.group, [&] { save_checkpoint(file_of(job), parts, {.sync = false}); });
  record::training_state("saved", run.parts());
  return read;
}

void restore(const Job& job, Attempt& run, const std::optional<Value>& read, const Fault& fault) {
  const auto saved = read ? *read : load_checkpoint(file_of(job)).value;
  load_state_dict(*run.net, saved.at("model"));
  load_state_dict(*run.average, saved.at("average"));
  const auto& parts = saved.as_dict();
  if (parts.contains("scheduler")) run.schedule.load_state_dict(saved.at("scheduler"));
  if (parts.contains("optimizer")) load_state_dict(run.optimizer, saved.at("optimizer"));
  if (parts.contains("rng_state"))
    set_rng_state(
        saved.at("rng_state").as_list().at(static_cast<std::size_t>(job.rank())).as_tensor());

  const auto epoch = saved.at("epoch").as_int(), batches = saved.at("batches").as_int();
  if (batches == job.updates_of_epoch()) {  // saved at an epoch's end
    run.begin_epoch(fault("resume-repeats-epoch") ? epoch : epoch + 1);
  } else {
    run.begin_epoch(epoch);
    if (!fault("resume-mid-epoch-replays")) {
      run.sampler.load_state_dict(saved.at("sampler"));
      run.batches = batches;
    }
  }
  record::training_state("resumed", run.parts());
}

// One process plays all attempts, so it says itself which one begins.
void tell_attempt(int attempt, int attempts) {
  if (const auto recorder = record::recorder_here())
    recorder->writer()->record(trace::Attempt{attempt, attempts - 1});
}

// The updates in `attempts` equal parts, with a restart between two of them.
std::unique_ptr<Attempt> run_in(int attempts, const Job& job, const Fault& fault) {
  std::unique_ptr<Attempt> run;
  std::optional<Value> read;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    tell_attempt(attempt, attempts);
    run.reset();
    torch::manual_seed(job.seed);
    run = std::make_unique<Attempt>(job);
    torch::manual_seed(rank_seed(job.seed, job.rank()));
    if (attempt == 0) save(job, *run, fault);
    if (attempt > 0 && !fault("restart-without-resume")) restore(job, *run, read, fault);
    const auto end = job.updates() * (attempt + 1) / attempts;
    for (auto done = job.updates() * attempt / attempts; done < end; ++done) step(job, *run, fault);
    read = save(job, *run, fault);
  }
  return run;
}

}  // namespace

std::vector<Setting> resume_settings() {
  // Of six epochs: killed inside the second, after the third, and inside the fifth.
  const auto thrice = [](const Job& job, const Fault& fault) {
    return accuracy(run_in(4, job, fault)->net, job.test);
  };
  const auto averaged = [](const Job& job, const Fault& fault) {
    return accuracy(run_in(4, job, fault)->average, job.test);
  };
  const auto once = [](const Job& job, const Fault& fault) {
    return accuracy(run_in(2, job, fault)->net, job.test);
  };
  return {{"resume",
           {"optimizer-state-missing", "scheduler-or-rng-state-missing", "resume-repeats-epoch",
            "resume-mid-epoch-replays", "read-before-written"},
           thrice},
          {"averaged-weights", {"ema-on-one-rank"}, averaged},
          {"restart", {"restart-without-resume"}, once}};
}

}  // namespace lockstep::silence
