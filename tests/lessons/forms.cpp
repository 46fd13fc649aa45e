#include "forms.h"

namespace lockstep::testing {
namespace {

FormCase right(const std::string& lesson, const std::string& form, int min_world_size = 1) {
  return {lesson, form, {}, 0, min_world_size, "completed", false};
}

std::function<double(int)> always(double value) {
  return [value](int) { return value; };
}

FormCase exactly(const std::string& lesson, const std::string& form,
                 std::function<double(int)> observed, int min_world_size = 2, double tolerance = 0,
                 const std::string& ending = "completed") {
  return {lesson, form, std::move(observed), tolerance, min_world_size, ending, false};
}

FormCase at_least(const std::string& lesson, const std::string& form, double observed,
                  int min_world_size = 2) {
  return {lesson, form, always(observed), 0, min_world_size, "completed", true};
}

// 4 files of 32 samples a rank, of which the sampler deals each rank one W-th, rounded up.
double own_share_of_own_files(int world_size) {
  return (128 + world_size - 1) / world_size / 128.0;
}

double padded(int world_size) {
  return (1009 + world_size - 1) / world_size * world_size;
}

}  // namespace

std::vector<FormCase> all_forms() {
  const std::string one = "01_single_device", two = "02_data_parallel", three = "03_ddp",
                    four = "04_sampler", five = "05_set_epoch";
  return {
      right(one, "correct"),
      at_least(one, "gradients-not-zeroed", 0.3, 1),
      right(one, "near-miss-accumulation"),

      right(two, "correct-batch"),
      exactly(two, "odd-batch-split", always(11), 2, 0, "crash"),
      at_least(two, "unequal-chunk-mean", 0.01),
      right(two, "correct-buffers"),
      exactly(two, "replica-buffers-lost", always(0)),
      right(two, "near-miss-frozen-statistics"),
      right(two, "correct-bottleneck"),
      exactly(two, "device-zero-bottleneck", always(1)),

      right(three, "correct-by-hand"),
      at_least(three, "no-initial-broadcast", 0.1),
      at_least(three, "no-gradient-sync", 1e-3),
      exactly(
          three, "sum-not-mean", [](int w) { return w; }, 2, 1e-3),
      right(three, "near-miss-same-seed"),
      right(three, "near-miss-parameters-averaged"),
      right(three, "near-miss-loss-divided"),
      right(three, "correct-wrapper"),
      at_least(three, "forward-bypasses-wrapper", 1e-3),
      exactly(
          three, "double-average", [](int w) { return 1.0 / w; }, 2, 1e-3),
      exactly(three, "parameters-differ-across-ranks", always(0), 2, 0, "crash"),
      right(three, "near-miss-sum-over-count"),
      right(three, "correct-made-up-data"),
      at_least(three, "dataset-unseeded", 1e-6),
      right(three, "near-miss-own-shard"),

      right(four, "correct-sharding"),
      exactly(four, "no-sharding", [](int w) { return w; }),
      exactly(four, "sharded-twice", own_share_of_own_files, 2, 1e-9),
      {four, "file-order-differs", [](int w) { return w == 2 ? 0.6 : 0.5; }, 0.35, 2, "completed",
       false},
      right(four, "near-miss-files-only"),
      right(four, "correct-stream"),
      exactly(
          four, "stream-not-sharded", [](int w) { return 2.0 * w; }, 1),
      right(four, "correct-evaluation"),
      exactly(four, "evaluation-padding", padded),
      right(four, "near-miss-dropped-when-counted"),
      right(four, "correct-quick-evaluation"),
      at_least(four, "shuffled-evaluation", 1e-4, 1),
      right(four, "near-miss-reversed-order"),
      right(four, "correct-libtorch-sampler"),
      exactly(four, "tail-never-seen", [](int w) { return 1009 % w; }),
      right(four, "correct-tiny-dataset"),
      exactly(
          four, "padding-overruns", [](int w) { return w - 2; }, 3, 0, "crash"),
      exactly(four, "empty-shard", always(0), 1),

      right(five, "correct"),
      exactly(five, "missing-set-epoch", always(1), 1),
      exactly(five, "set-epoch-on-copy", always(1), 1),
      at_least(five, "epoch-differs-by-rank", 1),
      exactly(five, "epoch-set-after-prefetch", always(32), 1),
      right(five, "near-miss-reseeded"),
      right(five, "near-miss-begun-before-set-epoch"),
  };
}

}  // namespace lockstep::testing
