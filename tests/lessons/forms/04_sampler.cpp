#include <cmath>

#include "../forms.h"

namespace lockstep::testing {
namespace {

// 4 files of 32 samples a rank, of which the sampler deals each rank one W-th, rounded up.
double own_share_of_own_files(int world_size) {
  return (128 + world_size - 1) / world_size / 128.0;
}

// W shares of 1/W, each drawn for itself: a sample is in none of them with probability (1 - 1/W)^W.
double seen_by_some(int world_size) {
  return 1 - std::pow(1 - 1.0 / world_size, world_size);
}

double padded(int world_size) {
  return (1009 + world_size - 1) / world_size * world_size;
}

FormCase advised(FormCase form) {
  form.advice = true;
  return form;
}

}  // namespace

std::vector<FormCase> forms_04() {
  return {
      right("correct-sharding"),
      exactly("no-sharding", [](int w) { return w; }),
      exactly("sharded-twice", own_share_of_own_files, 2, 1e-9),
      exactly(
          "file-order-differs", [](int w) { return w == 2 ? 0.6 : 0.5; }, 2, 0.35),
      advised(
          exactly("shards-overlap", seen_by_some, 2, 0.08)),  // local shuffling is a choice, too
      right("near-miss-files-only"),
      right("near-miss-seed-by-epoch"),
      right("correct-stream"),
      exactly(
          "stream-not-sharded", [](int w) { return 2.0 * w; }, 1),
      right("correct-evaluation"),
      exactly("evaluation-padding", padded),
      right("near-miss-dropped-when-counted"),
      right("correct-quick-evaluation"),
      at_least("shuffled-evaluation", 1e-4, 1),
      right("near-miss-reversed-order"),
      right("correct-libtorch-sampler"),
      exactly("tail-never-seen", [](int w) { return 1009 % w; }),
      right("correct-tiny-dataset"),
      exactly(
          "padding-overruns", [](int w) { return w - 2; }, 3, 0, "crash"),
      exactly("empty-shard", always(0), 1),
  };
}

}  // namespace lockstep::testing
