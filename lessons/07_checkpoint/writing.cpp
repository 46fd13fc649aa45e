// Lesson 07, part "writing": one writer, and all ranks wait until it is done.
//
// Concept:  rank 0 writes, all others wait for it, then all read.
// Symptom:  a rank that does not wait can read the previous checkpoint, and goes on with other
//           weights than its peers. Where all ranks write to one path, the file can hold parts of
//           several ranks' bytes.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>

#include "run.h"

namespace {

using namespace checkpoint_lesson;

Value to_save(RankContext& context, Run& run) {
  return Value::Dict{{"model", state_dict(*run.model)}, {"saved_by", context.rank()}};
}

// The near miss: each rank has a file of its own.
Checkpoint save_and_read_own(RankContext& context, Run& run, const LoadOptions& here) {
  const auto own = context.folder() / ("checkpoint_" + std::to_string(context.rank()) + ".pt");
  save_checkpoint(own, to_save(context, run));
  return load_checkpoint(own, here);
}

// The near miss: no rank has the number before rank 0 sends it.
Checkpoint save_broadcast_and_read(RankContext& context, Run& run,
                                   const std::filesystem::path& file, const LoadOptions& here) {
  if (context.rank() == 0) save_checkpoint(file, to_save(context, run));
  auto number = at::ones({1}, at::TensorOptions(context.device()));
  broadcast(*context.group(), number);
  return load_checkpoint(file, here);
}

Checkpoint save_and_read(RankContext& context, Run& run, const std::filesystem::path& file,
                         const Fault& fault) {
  const LoadOptions here{.map_location = context.device()};
  if (fault("near-miss-file-a-rank")) return save_and_read_own(context, run, here);
  if (fault("near-miss-waits-by-broadcast"))
    return save_broadcast_and_read(context, run, file, here);
  if (fault("concurrent-writers")) {
    write_among_others(context, file, to_save(context, run), /*writes=*/true);
    return load_checkpoint(file, here);
  } else if (fault("read-before-written")) {
    // No rank waits. The barrier makes certain that rank 0 writes after the others have read.
    std::optional<Checkpoint> checkpoint;
    if (context.rank() != 0) checkpoint = load_checkpoint(file, here);
    barrier(*context.group());
    if (context.rank() == 0) save_checkpoint(file, to_save(context, run));
    return context.rank() == 0 ? load_checkpoint(file, here) : *checkpoint;
  } else {
    save_on_rank_zero(*context.group(), [&] { save_checkpoint(file, to_save(context, run)); });
    return load_checkpoint(file, here);
  }
}

void train(RankContext& context, const Fault& fault) {
  const auto data = training_data(context);
  auto sampler = sampler_of(context, data);
  const auto file = context.folder() / "checkpoint.pt";
  Run run(context, data);
  run.epoch(sampler, 0);
  save_on_rank_zero(*context.group(), [&] { save_checkpoint(file, to_save(context, run)); });
  run.epoch(sampler, 1);
  const auto checkpoint = save_and_read(context, run, file, fault);
  load_state_dict(*run.model, checkpoint.at("model"));
}

Measured distance_of_read_weights(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "distance"), .tolerance = 1e-9};
}

}  // namespace

lockstep::Part writing_part() {
  return {.name = "writing",
          .run = train,
          .broken = {{.slug = "read-before-written",
                      .what = "the other ranks read without waiting for rank 0 to save",
                      .oracle = {"distance of the weights read from those saved (relative)",
                                 distance_of_read_weights}},
                     {.slug = "concurrent-writers",
                      .what = "every rank saves to one path at the same time",
                      .oracle = {"whole checkpoints that a rank finds", readable_checkpoints},
                      .crashes = true}},
          .near_misses = {{.name = "near-miss-waits-by-broadcast",
                           .slug = "read-before-written",
                           .naive_check = "no barrier stands between the save and the load"},
                          {.name = "near-miss-file-a-rank",
                           .slug = "concurrent-writers",
                           .naive_check = "every rank saves at the same time"}},
          .notes = notes<Loads>};
}
