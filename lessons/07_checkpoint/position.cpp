// Lesson 07, part "position": going on behind the last sample that was trained on.
//
// Concept:  a checkpoint says how far the data had been read: the epoch, and inside an epoch how
//           many samples all ranks together had been given.
// Symptom:  the epoch that is over is trained once more, because the file names it and not the next
//           one; or an epoch that was broken off starts over, and its first samples are trained on
//           twice.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>

#include <limits>

#include "run.h"

namespace {

using namespace checkpoint_lesson;

constexpr std::int64_t kBrokenOffAfter = 3;  // batches

void save(RankContext& context, Run& run, const std::filesystem::path& file, std::int64_t epoch,
          const DistributedSampler& sampler) {
  auto checkpoint = run.parts();
  checkpoint["rng_state"] = all_rng_states(context);
  checkpoint["epoch"] = epoch;
  checkpoint["sampler"] = sampler.state_dict();
  save_on_rank_zero(*context.group(), [&] { save_checkpoint(file, checkpoint); });
  context.training_state("saved", run.parts());
}

Checkpoint restore(RankContext& context, Run& run, const std::filesystem::path& file) {
  auto checkpoint = load_checkpoint(file, {.map_location = context.device()});
  load_state_dict(*run.model, checkpoint.at("model"));
  load_state_dict(run.optimizer, checkpoint.at("optimizer"));
  run.scheduler.load_state_dict(checkpoint.at("scheduler"));
  restore_rng(context, checkpoint.at("rng_state"));
  context.training_state("resumed", run.parts());
  return checkpoint;
}

std::vector<std::int64_t> as_ids(const std::vector<std::size_t>& indices) {
  return {indices.begin(), indices.end()};
}

// A near miss: the epoch is dealt from its start, and what was trained on is thrown away.
void deal_the_rest(const DistributedSampler& sampler, std::int64_t dataset_size, Run& run) {
  const auto ids = sampler.indices();
  std::vector<std::vector<std::int64_t>> rest;
  for (auto at = ids.begin() + kBrokenOffAfter * kBatch; at < ids.end(); at += kBatch)
    rest.emplace_back(at, at + kBatch);
  tell_pass(sampler.epoch(), dataset_size, rest);
  for (const auto& batch : rest) run.step(batch);
}

// Started again after an epoch's end, and broken off inside the next, which it gives back.
std::int64_t go_on_and_break_off(RankContext& context, const TensorData& data,
                                 const std::filesystem::path& ended,
                                 const std::filesystem::path& inside, const Fault& fault) {
  Run run(context, data);
  const auto checkpoint = restore(context, run, ended);
  std::int64_t epoch = checkpoint.at("epoch").as_int();
  if (fault("resume-repeats-epoch")) {
    // Nothing: the file names an epoch, so that is where to go on.
  } else if (fault("near-miss-file-names-the-next-epoch")) {
    // A near miss: the file names the epoch to go on with.
  } else {
    ++epoch;
  }
  auto sampler = sampler_of(context, data);
  sampler.set_epoch(epoch);
  sampler.reset();
  for (std::int64_t i = 0; i < kBrokenOffAfter; ++i) run.step(as_ids(*sampler.next(kBatch)));
  save(context, run, inside, epoch, sampler);
  return epoch;
}

// And again, inside an epoch.
void go_on_inside(RankContext& context, const TensorData& data, const std::filesystem::path& inside,
                  std::int64_t epoch, const Fault& fault) {
  Run run(context, data);
  const auto checkpoint = restore(context, run, inside);
  auto sampler = sampler_of(context, data);
  sampler.set_epoch(epoch);
  if (fault("near-miss-drawn-batches-thrown-away")) return deal_the_rest(sampler, data.size(), run);
  if (fault("resume-mid-epoch-replays")) {
    sampler.reset();
  } else {
    sampler.load_state_dict(checkpoint.at("sampler"));
  }
  while (const auto indices = sampler.next(kBatch)) run.step(as_ids(*indices));
}

void train(RankContext& context, const Fault& fault) {
  const auto data = training_data(context);
  const auto ended = context.folder() / "epoch.pt", inside = context.folder() / "inside.pt";
  {
    Run run(context, data);
    auto sampler = sampler_of(context, data);
    run.epoch(sampler, 0);
    save(context, run, ended, fault("near-miss-file-names-the-next-epoch") ? 1 : 0, sampler);
  }
  const auto epoch = go_on_and_break_off(context, data, ended, inside, fault);
  go_on_inside(context, data, inside, epoch, fault);
}

// Of the second pass on rank 0, the samples that stand where they stood in the first. By chance
// there is hardly one.
Measured samples_in_their_old_place(const Outcomes& outcomes) {
  Measured same{
      .expected = 0, .observed = std::numeric_limits<double>::quiet_NaN(), .tolerance = 8};
  const auto found = outcomes.at(0).ids.find("train");
  if (found == outcomes.at(0).ids.end() || found->second.size() < 2) return same;
  same.observed = 0;
  for (std::size_t i = 0; i < found->second[1].size(); ++i)
    same.observed += found->second[1][i] == found->second[0].at(i);
  return same;
}

// Over the second pass and the third, which together are the epoch that was broken off.
Measured samples_not_drawn_once(const Outcomes& outcomes) {
  const auto size = kBatch * kBatchesAnEpoch * static_cast<std::int64_t>(outcomes.size());
  const auto before = times_drawn(outcomes, "train", 1, size);
  const auto after = times_drawn(outcomes, "train", 2, size);
  double others = 0;
  for (std::size_t i = 0; i < before.size(); ++i) others += before[i] + after[i] != 1;
  return {.expected = 0, .observed = others, .tolerance = 0};
}

}  // namespace

lockstep::Part position_part() {
  return {.name = "position",
          .run = train,
          .broken = {{.slug = "resume-repeats-epoch",
                      .what = "the run goes on with the epoch in the file, not the next",
                      .oracle = {"samples of the next pass that stand where they stood before",
                                 samples_in_their_old_place},
                      .min_world_size = 1},
                     {.slug = "resume-mid-epoch-replays",
                      .what = "the sampler starts an epoch over that was broken off",
                      .oracle = {"samples of the broken epoch not drawn exactly once",
                                 samples_not_drawn_once},
                      .min_world_size = 1}},
          .near_misses = {{.name = "near-miss-file-names-the-next-epoch",
                           .slug = "resume-repeats-epoch",
                           .naive_check = "the run goes on with the epoch in the file"},
                          {.name = "near-miss-drawn-batches-thrown-away",
                           .slug = "resume-mid-epoch-replays",
                           .naive_check = "the sampler starts the epoch over"}}};
}
